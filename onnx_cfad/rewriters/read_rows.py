"""Rows that a loop reads by its iteration number, written as the one Gather that the reverse pass stacks.

The cotangents of ``Gather (x, i)`` are stacked by the reverse loop. Any other way to read a row costs a tensor of the
size of x in every iteration, all of them the square of the trip count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.element_types import FLOATING
from onnx_cfad.graph.iteration import iterations_ahead
from onnx_cfad.graph.regions import LoopSite, loop_site
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder

_TO_END = 2**63 - 1


class ReadRowsPass(ir.passes.InPlacePass):
    """Writes a read of a row ``x[i + k]``, with the iteration number i and a constant k, as ``Gather (x, i)``.

    Recognised are a Gather by one integer, and a Slice or a Gather of one element whose axis a Squeeze takes away, by
    the iteration number or a counter; x is a tensor from outside of the loop. For k > 0 the Gather reads ``x[k:]``,
    made in front of the loop. Elements are copied either way, so no bit changes. Shapes of values are read; new ones
    have to be inferred.

    Args:
        kept: Names of values that have to be passed through.
    """

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__()
        self._kept = frozenset(kept)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits the body of every Loop once."""
        namer, changed = Namer.on_demand(model), False
        for loop in nodes_of(model.graph):
            if loop.op_type == "Loop" and loop.domain in ("", "ai.onnx"):
                changed |= self._loop(loop_site(loop), namer)
        return ir.passes.PassResult(model, changed)

    def _loop(self, site: LoopSite, namer: Namer) -> bool:
        found = [(node, read) for node in site.body if (read := self._read(node, site)) is not None]
        whole: dict[tuple[ir.Value, int, int], ir.Value] = {}
        for node, read in found:
            _replace(node, read, _from(read, site, whole, namer), site)
        return bool(found)

    def _read(self, node: ir.Node, site: LoopSite) -> _Read | None:
        """What ``node`` reads where it gives a row and is not the Gather that is wanted."""
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Gather":
            read = _row(node, site, rank=0)
            plain = read is not None and read.ahead == 0 and node.inputs[1] is site.index
            return None if plain else read
        picked = node.inputs[0].producer() if node.op_type == "Squeeze" and node.inputs[0] is not None else None
        if picked is None or picked.graph is not site.body or picked.outputs[0].name in self._kept:
            return None
        axes = _integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None or len(axes) != 1:
            return None
        read = {"Gather": _row(picked, site, rank=1), "Slice": _element(picked, site)}.get(picked.op_type)
        rank = None if read is None or read.source.shape is None else read.source.shape.rank()
        return read if read is not None and rank is not None and axes[0] % rank == read.axis else None


@dataclasses.dataclass(frozen=True)
class _Read:
    """A row of an outer tensor: ``source[..., i + ahead, ...]`` along ``axis``."""

    source: ir.Value
    axis: int
    ahead: int


def _row(node: ir.Node, site: LoopSite, *, rank: int) -> _Read | None:
    """What a Gather by one integer, of that rank, reads."""
    if node.op_type != "Gather":
        return None
    source, index = node.inputs
    if index is None or index.shape is None or index.shape.rank() != rank:
        return None
    return _read_of(source, node.attributes.get_int("axis", 0), index, site)


def _element(node: ir.Node, site: LoopSite) -> _Read | None:
    """What a Slice reads if it gives one element: the one that it starts from, whatever its end and its step."""
    if node.op_type != "Slice":
        return None
    source, starts, _, axes, steps = (*node.inputs, None, None)[:5]
    named, strides = [0] if axes is None else _integers(axes), [1] if steps is None else _integers(steps)
    if starts is None or named is None or len(named) != 1 or strides is None or strides[0] < 0:
        return None
    return _read_of(source, named[0], starts, site)


def _read_of(source: ir.Value | None, axis: int, index: ir.Value, site: LoopSite) -> _Read | None:
    if source is None or source.graph is site.body or source.shape is None or source.dtype not in FLOATING:
        return None
    if index.shape is None or index.shape.rank() > 1 or any(dim != 1 for dim in index.shape):
        return None
    ahead = iterations_ahead(index, site)
    return None if ahead is None or ahead < 0 else _Read(source, axis % source.shape.rank(), ahead)


def _from(read: _Read, site: LoopSite, whole: dict[tuple[ir.Value, int, int], ir.Value], namer: Namer) -> ir.Value:
    """The source without the rows in front of the first one that is read."""
    if not read.ahead:
        return read.source
    key = (read.source, read.axis, read.ahead)
    if key not in whole:
        op = Recorder(namer, "rows")
        bounds = [op.constant(np.asarray([number], np.int64)) for number in (read.ahead, _TO_END, read.axis)]
        whole[key] = op.Slice(read.source, *bounds)
        whole[key].type = read.source.type
        assert site.node.graph is not None
        site.node.graph.insert_before(site.node, op.nodes)
    return whole[key]


def _replace(node: ir.Node, read: _Read, source: ir.Value, site: LoopSite) -> None:
    """Puts the Gather in the place of ``node``, under its name and that of its output."""
    gather = ir.Node(
        "", "Gather", [source, site.index], [ir.AttrInt64("axis", read.axis)], name=node.name,
        metadata_props=node.metadata_props,
    )  # fmt: skip
    ir.convenience.replace_nodes_and_values(site.body, node, [node], [gather], node.outputs, gather.outputs)


def _integers(value: ir.Value | None) -> list[int] | None:
    """A constant vector of integers."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(x) for x in tensor.numpy().reshape(-1)]
