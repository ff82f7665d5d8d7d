"""Gives every output of a branch or Scan body, and every list that a Loop body returns, a value of its own.

ONNX Runtime 1.32 gives silent zeros or uninitialised memory for a Scan body that returns its own input or one value
twice, for a branch that returns one value twice, and an empty list for the second output of a Loop body that returns
one list twice. The checker accepts such models, and exporters write them.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import is_branch, is_loop
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer


class SeparateOutputsPass(ir.passes.InPlacePass):
    """Puts an Identity where a branch or Scan body returns an input, or a value that it has returned already.

    Works at every depth. Of the body of a Loop only repeated lists and optionals are copied: it copies tensors itself.
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
            elif is_loop(node):
                for graph in subgraphs_of(node):
                    changed |= _separate_lists(graph, self._namer)
        return ir.passes.PassResult(model, changed)


def separate_outputs(graph: ir.Graph, namer: Namer) -> bool:
    """Puts an Identity in front of each output of ``graph`` that is not made by a node of it, or is repeated."""
    changed = False
    seen: set[ir.Value] = set()
    for position, value in enumerate(list(graph.outputs)):
        node = value.producer()
        if node is None or node.graph is not graph or value in seen:
            _copy(graph, position, namer)
            changed = True
        seen.add(graph.outputs[position])
    return changed


def _separate_lists(graph: ir.Graph, namer: Namer) -> bool:
    outputs = list(graph.outputs)
    repeated = [
        k for k, value in enumerate(outputs) if value in outputs[:k] and not isinstance(value.type, ir.TensorType)
    ]
    for position in repeated:
        _copy(graph, position, namer)
    return bool(repeated)


def _copy(graph: ir.Graph, position: int, namer: Namer) -> None:
    value = graph.outputs[position]
    copy = ir.Node("", "Identity", [value], name=namer.fresh("grad/Identity"))
    copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
    copy.outputs[0].shape = value.shape
    graph.append(copy)
    graph.outputs[position] = copy.outputs[0]
