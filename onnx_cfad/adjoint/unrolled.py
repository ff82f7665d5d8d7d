"""A loop written out: its iterations one after the other, or several in each iteration of a shorter loop.

Other names: loop unrolling. It lets constants fold (the iteration number becomes one), at the price of a graph that
grows with the trip count: ONNX Runtime's session creation grows as N^1.84. There is no run-time gain in ONNX Runtime at
N >= 100 (measured), so it pays for a few iterations, or for a runtime without loops.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.adjoint.replay import copy_nodes
from onnx_cfad.adjoint.segments import segment_scan
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.operator_types import keep_shape
from onnx_cfad.graph.regions import LoopSite, label, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.types import Types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.rewriters.scan_form import loop_to_scan

NODE_BUDGET = 20_000


@dataclasses.dataclass(frozen=True)
class Unrolled(Adjoint):
    """The loop's iterations written out.

    Attributes:
        factor: Iterations written out in each iteration of the loop that remains; 0 for all, so that none remains.
    """

    factor: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.factor <= NODE_BUDGET:
            raise PlanError(
                "unrolled", f"factor={self.factor}", f"Use 0 for the whole loop, or up to {NODE_BUDGET:,} iterations."
            )

    def prepare(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """See ``Adjoint.prepare``."""
        del types
        site = loop_site(node)
        count = trip_count(site)
        if count.static is None or count.conditional:
            raise PlanError(
                label(node),
                f"a loop with {count} trips{' and a condition' if count.conditional else ''} cannot be unrolled",
                "Choose taped or checkpointed.",
            )
        factor = self.factor or count.static
        _refuse_large(site, min(factor, count.static))
        if factor >= count.static:
            copies, renamed = unroll(node, count.static, builder)
            return Prepared({}, copies=copies, renamed=renamed)
        if count.static % factor:
            raise PlanError(
                label(node),
                f"factor {factor} does not divide its {count.static} trips",
                "Choose a divisor, or 0 for all.",
            )
        scan = node if site.is_scan else loop_to_scan(site, count.static, builder.namer, slice_rows=True)
        segmented = segment_scan(scan, factor, count.static, builder)
        copies, renamed = unroll(segmented.inner, factor, builder)
        outer = segmented.outer.attributes["body"].as_graph()
        return Prepared({outer: Taped()}, copies=copies, renamed=renamed)

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Never reached: no loop is left, or one that is taped."""
        del sweep, cotangents, in_loop
        raise AssertionError(f"{label(node)} was not prepared")


def _refuse_large(site: LoopSite, copies: int) -> None:
    nodes = len(nodes_of(site.body)) * copies
    if nodes > NODE_BUDGET:
        raise PlanError(
            label(site.node),
            f"unrolled it would have {nodes:,} nodes, more than {NODE_BUDGET:,}",
            "Choose taped or checkpointed, or a smaller factor.",
        )


def unroll(
    node: ir.Node, trips: int, builder: Builder
) -> tuple[dict[ir.Graph, ir.Graph], dict[ir.Graph, dict[ir.Value, ir.Value]]]:
    """Replaces a Loop or Scan of ``trips`` iterations by the iterations.

    Returns:
        The copied subgraphs of the body, each with its original; and for each what the values around became.
    """
    site, out = loop_site(node), builder.child()
    copies: dict[ir.Graph, ir.Graph] = {}
    renamed: dict[ir.Graph, dict[ir.Value, ir.Value]] = {}
    state = [carry.initial for carry in site.carries]
    elements: list[list[Expr]] = [[] for _ in site.outputs]
    for trip in range(trips):
        mapping = _entering(site, trip, trips, state, out)
        out.nodes.extend(copy_nodes(list(site.body), mapping, out.namer, copies))
        renamed.update({copy: mapping for copy in copies if copy not in renamed})
        state = [mapping.get(carry.exit, carry.exit) for carry in site.carries]
        for made, output in zip(elements, site.outputs, strict=True):
            made.append(out.expr(mapping.get(output.element, output.element)))
    results = [out.expr(value) for value in state]
    results += [
        _stacked(made, o.axis, o.reverse, o.stacked, out) for made, o in zip(elements, site.outputs, strict=True)
    ]
    results = [_own(result, out) for result in results]
    for result, old in zip(results, node.outputs, strict=True):
        keep_shape(result.value, old.shape)
    graph = node.graph
    assert graph is not None
    for initializer in out.initializers:
        graph.initializers.add(initializer)
    values = [result.value for result in results]
    ir.convenience.replace_nodes_and_values(graph, node, [node], out.nodes, list(node.outputs), values)
    return copies, renamed


def _entering(site: LoopSite, trip: int, trips: int, state: list[ir.Value], out: Builder) -> dict[ir.Value, ir.Value]:
    """What the body's inputs and constants are in iteration ``trip``."""
    mapping = dict(zip((carry.entry for carry in site.carries), state, strict=True))
    if site.index is not None and site.predicate is not None:
        mapping[site.index] = out.constant(np.int64(trip)).value
        mapping[site.predicate] = out.constant(True).value
    for source in site.inputs:
        position = trips - 1 - trip if source.reverse else trip
        read = op.Gather(out.expr(source.source), out.constant(np.int64(position)), axis=source.axis)
        read.value.shape = source.slice.shape
        mapping[source.slice] = read.value
    for value in site.body.initializers.values():
        if value.const_value is not None and value.dtype is not None:
            mapping[value] = out.constant(value.const_value.numpy(), value.dtype).value
    return mapping


def _stacked(made: list[Expr], axis: int, reverse: bool, like: ir.Value, out: Builder) -> Expr:
    if not made:
        dims = [d if isinstance(d, int) else 0 for d in like.shape.dims] if like.shape is not None else [0]
        assert like.dtype is not None
        return out.constant(np.zeros(dims), like.dtype)
    rows = [op.Unsqueeze(x, [axis]) for x in made]
    return concat(rows[::-1] if reverse else rows, axis=axis)


def _own(result: Expr, out: Builder) -> Expr:
    """A result under a value of its own, which can take over the name of an output."""
    return out.expr(out.fresh_identity(result.value))
