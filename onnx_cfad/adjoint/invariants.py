"""Loop-invariant code motion: what a body computes from outer values alone is computed once, in front of the loop.

ONNX Runtime 1.32 moves nothing out of bodies: an invariant product inside one is run every iteration.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.walk import subgraphs_of


def hoist_invariants(body: ir.Graph, outer: Builder, entries: Collection[ir.Value]) -> None:
    """Moves the invariant nodes of ``body``, a closed graph, to ``outer``.

    A node moves when all it reads is outside, it is pure, and it has no subgraph. Results of the body stay.

    Args:
        body: The loop body.
        outer: Takes the nodes.
        entries: What the body reads anew each iteration; not yet its inputs.
    """
    outputs = set(body.outputs)
    entering = set(entries)
    for node in list(body):
        if subgraphs_of(node) or not is_pure(node) or not outputs.isdisjoint(node.outputs):
            continue
        inside = [v for v in node.inputs if v is not None and v.graph is body]
        if any(not value.is_initializer() for value in inside) or not entering.isdisjoint(node.inputs):
            continue
        for value in inside:
            if value.name is not None and value.name in body.initializers:
                del body.initializers[value.name]
                outer.initializers.append(value)
        body.remove(node)
        outer.nodes.append(node)
