"""Loops that say what ONNX lets them leave out: a limit, and a condition for the first iteration."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.rewrite_nodes import RewriteNodesPass

UNLIMITED = 2**63 - 1


class SupplyLimitsPass(RewriteNodesPass):
    """Gives every Loop, in the main graph and all subgraphs, a limit and an initial condition, both without axes.

    Given ``y = Loop ( , , x)``, the result is ``y = Loop (2^63 - 1, true, x)``; a limit or condition of shape [1] is
    reshaped.
    """

    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Supplies what a Loop lacks."""
        if node.op_type != "Loop":
            return False
        op = Recorder(namer, node.name or "loop")
        node.resize_inputs(max(len(node.inputs), 2))
        for position, default in ((0, np.asarray(UNLIMITED)), (1, np.asarray(True))):
            value = node.inputs[position]
            if value is None:
                node.replace_input_with(position, op.constant(default))
            elif value.shape is None or value.shape.rank() != 0:
                node.replace_input_with(position, op.Reshape(value, _no_axes(op)))
        graph.insert_before(node, op.nodes)
        return bool(op.nodes)


def _no_axes(op: Recorder) -> ir.Value:
    return op.constant(np.zeros(0, dtype=np.int64))
