"""Forward mode through an If: each branch hands out the tangents of its results beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.extend import returned
from onnx_cfad.graph.regions import branch_site

if TYPE_CHECKING:
    from onnx_cfad.adjoint.forward_sweep import ForwardSweep


def push_through_branch(sweep: ForwardSweep, node: ir.Node, builder: Builder) -> ir.Node:
    """Extends the If ``node`` by an output for the tangent of each active one, and gives the node."""
    site = branch_site(node)
    active = [k for k, output in enumerate(node.outputs) if sweep.activity.is_active(output)]
    for branch in site.branches:
        inner = builder.child()
        sweep.run(branch, inner)
        results = [sweep.tangent_or_zero(branch.outputs[k], inner) for k in active]
        sweep.close(branch, inner)
        for result in results:
            branch.outputs.append(returned(branch, result.value, builder.namer))
    count = len(node.outputs)
    node.resize_outputs(count + len(active))
    for k, tangent in zip(active, node.outputs[count:], strict=True):
        output = node.outputs[k]
        tangent.name, tangent.type, tangent.shape = builder.namer.fresh(f"{output.name}.t"), output.type, output.shape
        sweep.tangents[output] = tangent
    return node
