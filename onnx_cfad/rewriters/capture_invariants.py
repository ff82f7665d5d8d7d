"""Carries that a loop hands on unchanged, read from outside instead.

tf2onnx, jax2onnx and scripted modules carry what a loop only reads: weights, sequences, lengths. A carry is taped in
every iteration, and its cotangent is carried backwards; a captured value is neither.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.regions import Carry, LoopSite, copies_between, is_loop, loop_site
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.rewriters.prune import drop_carries


class CaptureInvariantsPass(ir.passes.InPlacePass):
    """Reads a tensor that every iteration of a Loop or Scan returns as it came where it comes from, inner loops first.

    Given ``y, w_end = Loop (n, c, y0, w) <body (i, go, y, v): ... MatMul (y, v) ... returns v>`` the result is
    ``y = Loop (n, c, y0) <body (i, go, y): ... MatMul (y, w) ...>`` with w for w_end. A carry stays where its last
    value is an output of the model or of a branch, or has a name in ``kept``.

    What follows from constants alone stays a carry: captured, ONNX Runtime would pack it, and round differently.

    Args:
        kept: Names of values whose place matters.
    """

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__()
        self._kept = frozenset(kept)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every loop once."""
        return ir.passes.PassResult(model, self._graph(model.graph, loop=False))

    def _graph(self, graph: ir.Graph, *, loop: bool) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(subgraph, loop=node.op_type == "Loop")
            if is_loop(node):
                changed |= self._capture(loop_site(node), graph if loop else None)
        return changed

    def _capture(self, site: LoopSite, around: ir.Graph | None) -> bool:
        """Captures the carries of one loop; ``around`` is the body of a Loop that it stands in."""
        steady = [k for k, carry in enumerate(site.carries) if self._is_steady(carry)]
        changed = False
        for k in steady:
            changed |= _read_outside(site.carries[k])
            changed |= _hand_initial_on(site.carries[k], around)
        spare = [k for k in steady if _is_spare(site, site.carries[k])]
        if spare and len(spare) < len(site.node.outputs):
            drop_carries(site, spare)
            changed = True
        return changed

    def _is_steady(self, carry: Carry) -> bool:
        copies = copies_between(carry)
        if copies is None or not isinstance(carry.entry.type, ir.TensorType):
            return False
        names = (carry.entry.name, carry.final.name, *(node.outputs[0].name for node in copies))
        return self._kept.isdisjoint(names) and self._varies(carry.initial)

    def _varies(self, value: ir.Value) -> bool:
        """Whether ``value`` depends on an input of the model, or of a body."""
        pending, seen = [value], {value}
        while pending:
            node = (one := pending.pop()).producer()
            if node is None and not (one.is_initializer() and not one.is_graph_input()):
                return True
            if node is not None and subgraphs_of(node):
                return True
            fresh = [v for v in (node.inputs if node is not None else ()) if v is not None and v not in seen]
            seen.update(fresh)
            pending += fresh
        return False


def _inside(carry: Carry) -> tuple[list[ir.Value], tuple[ir.Node, ...]]:
    """The names that the carry has in the body, and the nodes that copy it."""
    copies = copies_between(carry) or ()
    return [carry.entry, *(node.outputs[0] for node in copies)], copies


def _read_outside(carry: Carry) -> bool:
    """Has the body read the initial value; the nodes that only hand the carry on stay."""
    values, copies = _inside(carry)
    uses = [use for value in values for use in value.uses() if use.node not in copies]
    for use in uses:
        use.node.replace_input_with(use.idx, carry.initial)
    return bool(uses)


def _is_spare(site: LoopSite, carry: Carry) -> bool:
    """Whether nothing needs the carry any more."""
    values, _ = _inside(carry)
    returned = sum(output is value for output in site.body.outputs for value in values)
    return returned == 1 and not (carry.final.uses() or carry.final.is_graph_output())


def _hand_initial_on(carry: Carry, around: ir.Graph | None) -> bool:
    """Has what reads the last value read the first; the body of a Loop may return its own input, others may not."""
    changed = False
    for use in list(carry.final.uses()):
        use.node.replace_input_with(use.idx, carry.initial)
        changed = True
    if around is None or carry.initial.graph is not around or not carry.final.is_graph_output():
        return changed
    for k, output in enumerate(around.outputs):
        if output is carry.final and carry.initial not in around.outputs:
            around.outputs[k] = carry.initial
            changed = True
    return changed
