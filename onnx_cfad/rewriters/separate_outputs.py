"""Gives every output of a branch or Scan body a value of its own.

ONNX Runtime 1.32 gives silent zeros or uninitialised memory for a Scan body that returns its own input or one value
twice, and for a branch that returns one value twice. The checker accepts such models, and exporters write them.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import is_branch, is_loop
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer


class SeparateOutputsPass(ir.passes.InPlacePass):
    """Puts an Identity where a branch or Scan body returns an input, or a value that it has returned already.

    Works at every depth. Loop bodies are left alone: a Loop copies what its body returns.
    """

    def __init__(self, namer: Namer) -> None:
        super().__init__()
        self._namer = namer

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every control-flow node once."""
        changed = False
        for node in nodes_of(model.graph):
            if is_branch(node) or (is_loop(node) and node.op_type == "Scan"):
                for graph in subgraphs_of(node):
                    changed |= separate_outputs(graph, self._namer)
        return ir.passes.PassResult(model, changed)


def separate_outputs(graph: ir.Graph, namer: Namer) -> bool:
    """Puts an Identity in front of each output of ``graph`` that is not made by a node of it, or is repeated."""
    changed = False
    seen: set[ir.Value] = set()
    for position, value in enumerate(list(graph.outputs)):
        node = value.producer()
        if node is None or node.graph is not graph or value in seen:
            copy = ir.Node("", "Identity", [value], name=namer.fresh("grad/Identity"))
            copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
            copy.outputs[0].shape = value.shape
            graph.append(copy)
            graph.outputs[position] = copy.outputs[0]
            changed = True
        seen.add(graph.outputs[position])
    return changed
