"""Moves what a loop computes from outer values alone in front of it; ONNX Runtime 1.32 runs it every iteration."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.activity import carries_derivative
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

    A Constant goes along with what reads it, unless it is a weight, or something that stays reads it too.
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
    moving = _invariant(loop, depth)
    body = loop_site(loop).body
    for node in moving:
        body.remove(node)
        graph.insert_before(loop, node)
    return bool(moving)


def _invariant(loop: ir.Node, depth: int) -> list[ir.Node]:
    """What moves, in order: with the numbers that it alone reads of those that the body declares by Constants."""
    site = loop_site(loop)
    certain = site.is_scan or trip_count(site).positive
    outputs = set(site.body.outputs)
    moving: dict[ir.Node, None] = {}
    for node in site.body:
        if subgraphs_of(node) or not is_pure(node) or not outputs.isdisjoint(node.outputs):
            continue
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type == "Constant" and not _is_weight(node.outputs[0]):
            moving[node] = None  # unless something that stays reads it
        if node.op_type in _GROWING or any(v.graph is site.body and v.producer() not in moving for v in inputs):
            continue
        if not inputs or (depth and any(v.is_initializer() for v in inputs)) or not (certain or _may_run(node)):
            continue
        moving[node] = None
    return _without_shared(moving)


def _without_shared(moving: dict[ir.Node, None]) -> list[ir.Node]:
    """Those of ``moving`` that read no Constant which a node that stays reads too."""
    while True:
        shared = {n for n in moving if n.op_type == "Constant" and not _is_read_by(n.outputs[0], moving)}
        if not shared:
            return list(moving)
        for node in list(moving):
            if node in shared or any(v is not None and v.producer() in shared for v in node.inputs):
                shared.add(node)
                del moving[node]


def _is_read_by(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Whether ``value`` is read, and by ``nodes`` alone."""
    return bool(value.uses()) and all(use.node in nodes for use in value.uses())


def _is_weight(value: ir.Value) -> bool:
    """Whether a derivative might be asked for: a weight stays where it is, and is one of its own scope."""
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is None or (carries_derivative(value) and tensor.shape.rank() > 0)


def _may_run(node: ir.Node) -> bool:
    """Whether ``node`` cannot fail: its shapes are known, and nothing that it reads can be out of range."""
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return all(v.shape is not None and v.shape.is_static() for v in values) and why_not_run(node) is None
