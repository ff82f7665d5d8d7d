"""Loop-invariant code motion: what a body computes from outer values alone is computed once, in front of the loop.

ONNX Runtime 1.32 moves nothing out of bodies: an invariant product inside one is run every iteration.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.graph.maskable import why_not_run
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.walk import subgraphs_of


def hoist_invariants(
    body: ir.Graph, outer: Builder, entries: Collection[ir.Value], *, certain: bool, guarded: bool
) -> list[ir.Node]:
    """Moves the invariant nodes of ``body``, a closed graph, to ``outer``.

    A node moves when all it reads is outside, it is pure, and it has no subgraph. Results of the body stay.

    Args:
        body: The loop body.
        outer: Takes the nodes.
        entries: What the body reads anew each iteration; not yet its inputs.
        certain: The loop runs at least once wherever it is reached.
        guarded: An If leaves the loop out where it would not run.

    Returns:
        Nodes that might fail where the loop does not run (an index is out of range), in order: for the branch of that
        If which has the loop. Without one they stay in the body.
    """
    outputs = set(body.outputs)
    entering = set(entries)
    behind: list[ir.Node] = []
    made_behind: set[ir.Value] = set()
    for node in list(body):
        if subgraphs_of(node) or not is_pure(node) or not outputs.isdisjoint(node.outputs):
            continue
        inside = [v for v in node.inputs if v is not None and v.graph is body]
        if any(not value.is_initializer() for value in inside) or not entering.isdisjoint(node.inputs):
            continue
        fails = not certain and (why_not_run(node) is not None or not made_behind.isdisjoint(node.inputs))
        if fails and not guarded:
            continue
        for value in inside:
            if value.name is not None and value.name in body.initializers:
                del body.initializers[value.name]
                outer.initializers.append(value)
        body.remove(node)
        (behind if fails else outer.nodes).append(node)
        made_behind.update(node.outputs if fails else ())
    return behind
