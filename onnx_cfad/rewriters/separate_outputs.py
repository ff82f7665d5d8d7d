"""Gives every output of a branch or Scan body, and lists and the iteration number that a Loop body returns, a value.

ONNX Runtime 1.32 gives silent zeros or uninitialised memory for a Scan body that returns its own input or one value
twice, for a branch that returns one value twice, and an empty list for the second output of a Loop body that returns
one list twice. The iteration number of a Loop is one buffer that it counts up: what a body returned as its own input
is the trip count at the end, in every row of a stack too. The checker accepts such models, and exporters write them.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import is_branch, is_loop
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer


class SeparateOutputsPass(ir.passes.InPlacePass):
    """Puts an Identity where a branch or Scan body returns an input, or a value that it has returned already.

    Works at every depth. Of the body of a Loop only repeated lists and optionals, and the iteration number where it is
    returned as it is, are copied: a Loop copies other tensors itself.
    """

    def __init__(self, namer: Namer) -> None:
        super().__init__()
        self._namer = namer

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every control-flow node once, those of functions too."""
        changed = False
        for node in (*nodes_of(model.graph), *(n for body in model.functions.values() for n in nodes_of(body))):
            if is_branch(node) or (is_loop(node) and node.op_type == "Scan"):
                for graph in subgraphs_of(node):
                    changed |= separate_outputs(graph, self._namer)
            elif is_loop(node):
                for graph in subgraphs_of(node):
                    changed |= _separate_shared(graph, self._namer)
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


def _separate_shared(graph: ir.Graph, namer: Namer) -> bool:
    """Copies what the body of a Loop returns and ONNX Runtime moves (a list, twice) or counts up."""
    outputs, number = list(graph.outputs), graph.inputs[0]
    shared = [
        k
        for k, value in enumerate(outputs)
        if value is number or (value in outputs[:k] and not isinstance(value.type, ir.TensorType))
    ]
    for position in shared:
        _copy(graph, position, namer)
    return bool(shared)


def _copy(graph: ir.Graph, position: int, namer: Namer) -> None:
    value = graph.outputs[position]
    copy = ir.Node("", "Identity", [value], name=namer.fresh("grad/Identity"))
    copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
    copy.outputs[0].shape = value.shape
    graph.append(copy)
    graph.outputs[position] = copy.outputs[0]
