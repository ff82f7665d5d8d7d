"""Rows that a loop writes into a tensor one after the other, stacked and written at once behind the loop.

ONNX Runtime 1.32 copies the tensor in every iteration, and once more in every iteration of the reverse pass: both take
the square of the trip count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.iteration import Index, Indices
from onnx_cfad.graph.regions import Carry, LoopSite, loop_site
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.linear_integers import vector
from onnx_cfad.rewriters.prune import drop_carries
from onnx_cfad.rewriters.recorder import Recorder


class WriteRowsPass(ir.passes.InPlacePass):
    """Stacks the rows that a Loop writes into a carry that it does not read, and writes them behind it.

    Given ``y = Loop (n, c, y0) <body (k, go, v): ... w = ScatterND (v, i, row) ... returns w>`` the result is
    ``rows = Loop (n, c) <body (k, go): ... returns row>`` and then ``y = ScatterND (y0, all i, rows)``. The place i is
    ``a k + b`` with the iteration number k, a constant a and an integer b from outside, and certainly another one in
    every iteration; the shape of a row is known. Numbers are copied either way, so no bit changes. A place outside of
    the tensor stays an error.

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
        found = {k: write for k, carry in enumerate(site.carries) if (write := _write_of(carry, site)) is not None}
        found = {k: write for k, write in found.items() if self._kept.isdisjoint(_names(site.carries[k]))}
        if not found:
            return False
        graph, op = site.node.graph, Recorder(namer, "written")
        assert graph is not None
        for k, write in found.items():
            _replace(site.carries[k].final, _write_behind(write, site, op, namer), namer)
        graph.insert_after(site.node, op.nodes)
        drop_carries(site, list(found))
        return True


@dataclasses.dataclass(frozen=True)
class _Write:
    """A row that every iteration writes at ``index`` into what was ``initial``."""

    initial: ir.Value
    row: ir.Value
    index: Index
    rank: int


def _names(carry: Carry) -> tuple[str | None, ...]:
    return carry.entry.name, carry.exit.name, carry.final.name


def _write_of(carry: Carry, site: LoopSite) -> _Write | None:
    """What an iteration does with ``carry`` where it writes a row into it, and nothing else."""
    node = carry.exit.producer()
    if node is None or node.op_type != "ScatterND" or node.domain not in ("", "ai.onnx") or node.graph is not site.body:
        return None
    data, place, row = node.inputs
    reduces = node.attributes.get_string("reduction", "none") != "none"
    if data is not carry.entry or len(carry.entry.uses()) != 1 or reduces or place is None or row is None:
        return None
    outputs = site.body.outputs
    if carry.exit.uses() or carry.entry in outputs or sum(output is carry.exit for output in outputs) != 1:
        return None
    if not (carry.final.uses() or carry.final.is_graph_output()) or row.shape is None or not row.shape.is_static():
        return None
    if place.shape is None or place.shape.dims not in ((1,), (1, 1)):
        return None
    indices = Indices(site)
    index = indices.of(place)
    if index is None or not _differs(index, indices):
        return None
    return _Write(carry.initial, row, index, place.shape.rank())


def _differs(index: Index, indices: Indices) -> bool:
    """Whether no two iterations write at one place: none goes on from the other end of the tensor."""
    if index.step > 0:
        return index.first.is_at_least(0)
    if index.first.constant is not None and index.first.number < 0:
        return True
    return indices.trips is not None and (index.first + indices.trips.plus(-1).times(index.step)).is_at_least(0)


def _write_behind(write: _Write, site: LoopSite, op: Recorder, namer: Namer) -> ir.Value:
    """Has the loop stack the rows; records what writes them all."""
    stacked = _stack(write.row, site, namer)
    count = op.Shape(stacked, start=0, end=1)
    numbers = op.Range(op.constant(0), op.Squeeze(count), op.constant(1))
    places = numbers if write.index.step == 1 else op.Mul(numbers, write.index.step)
    if write.index.first.constant != 0:
        places = op.Add(places, vector(op, write.index.first))
    return op.ScatterND(write.initial, op.Reshape(places, op.ints(-1, *[1] * write.rank)), stacked)


def _stack(row: ir.Value, site: LoopSite, namer: Namer) -> ir.Value:
    """A new output of the loop, the rows of all iterations."""
    node, body = site.node, site.body
    if row.producer() is None or row.graph is not body or row in body.outputs:
        copy = ir.Node("", "Identity", [row], name=namer.fresh("written/Identity"))
        copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{row.name}.copy"), row.type
        copy.outputs[0].shape = row.shape
        body.append(copy)
        row = copy.outputs[0]
    body.outputs.append(row)
    node.resize_outputs(len(node.outputs) + 1)
    stacked = node.outputs[-1]
    stacked.name, stacked.type = namer.fresh(f"{row.name}.rows"), row.type
    return stacked


def _replace(old: ir.Value, new: ir.Value, namer: Namer) -> None:
    """Has ``new`` take the place and the name of ``old``."""
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    new.name, old.name = old.name, namer.fresh(f"{old.name}.dropped")
