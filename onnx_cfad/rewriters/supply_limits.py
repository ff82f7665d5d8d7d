"""Loops that say what ONNX lets them leave out: a limit, and a condition for the first iteration."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder

UNLIMITED = 2**63 - 1


class SupplyLimitsPass(ir.passes.InPlacePass):
    """Gives every Loop, in the main graph and all subgraphs, a limit and an initial condition, both without axes.

    Given ``y = Loop ( , , x)``, the result is ``y = Loop (2^63 - 1, true, x)``; a limit or condition of shape [1] is
    reshaped.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Supplies what is missing."""
        return ir.passes.PassResult(model, self._graph(model.graph, Namer.of_model(model)))

    def _graph(self, graph: ir.Graph, namer: Namer) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(subgraph, namer)
            if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
                op = Recorder(namer, node.name or "loop")
                node.resize_inputs(max(len(node.inputs), 2))
                for position, default in ((0, np.asarray(UNLIMITED)), (1, np.asarray(True))):
                    value = node.inputs[position]
                    if value is None:
                        node.replace_input_with(position, op.constant(default))
                    elif value.shape is None or value.shape.rank() != 0:
                        node.replace_input_with(position, op.Reshape(value, _no_axes(op)))
                graph.insert_before(node, op.nodes)
                changed |= bool(op.nodes)
        return changed


def _no_axes(op: Recorder) -> ir.Value:
    return op.constant(np.zeros(0, dtype=np.int64))
