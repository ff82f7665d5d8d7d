"""Moves what a loop computes from outer values alone in front of it; ONNX Runtime 1.32 runs it every iteration."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.maskable import why_not_run
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import is_loop, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.walk import subgraphs_of

_GROWING = frozenset(("Expand", "ConstantOfShape", "Range", "Tile", "Constant", "EyeLike", "OneHot", "Identity"))


class HoistInvariantsPass(ir.passes.InPlacePass):
    """Moves loop-invariant nodes out of Loop and Scan bodies, innermost loops first, at every depth.

    Given ``z = Loop (n, c, z0) <body: u = MatMul (x, U) ...>`` with x and U from outside, the result is
    ``u = MatMul (x, U)`` followed by the Loop that captures u.

    A node stays when the loop might run zero times and its shapes are not all known, or an index, a divisor or a size
    might be out of range (it might fail where it never ran), when it makes something larger out of something small, and
    when moving it would change which kernel a weight uses (a weight is packed only up to one level below it).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Hoists until nothing moves."""
        return ir.passes.PassResult(model, _hoist(model.graph, depth=0))


def _hoist(graph: ir.Graph, depth: int) -> bool:
    changed = False
    for node in list(graph):
        for subgraph in subgraphs_of(node):
            changed |= _hoist(subgraph, depth + 1)
        if is_loop(node):
            changed |= _hoist_from(node, graph, depth)
    return changed


def _hoist_from(loop: ir.Node, graph: ir.Graph, depth: int) -> bool:
    site = loop_site(loop)
    certain = site.is_scan or trip_count(site).positive
    moved = False
    outputs = set(site.body.outputs)
    for node in list(site.body):
        if node.op_type in _GROWING or subgraphs_of(node) or not is_pure(node) or not outputs.isdisjoint(node.outputs):
            continue
        inputs = [v for v in node.inputs if v is not None]
        if any(v.graph is site.body for v in inputs) or not inputs:
            continue
        if (depth and any(v.is_initializer() for v in inputs)) or not (certain or _may_run(node)):
            continue
        site.body.remove(node)
        graph.insert_before(loop, node)
        moved = True
    return moved


def _may_run(node: ir.Node) -> bool:
    """Whether ``node`` cannot fail: its shapes are known, and nothing that it reads can be out of range."""
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return all(v.shape is not None and v.shape.is_static() for v in values) and why_not_run(node) is None
