"""Cuts what was taken out of a model off from what is left: nodes, and the subgraphs of nodes.

A value counts as read while a node anywhere has it as an input, also a node in a branch that is no longer part of the
model: its producer would stay, though what it reads itself may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.graph.walk import subgraphs_of


def release(node: ir.Node) -> None:
    """Takes the inputs from all nodes in the subgraphs of ``node``, at every depth, and the outputs from the graphs."""
    for graph in subgraphs_of(node):
        graph.outputs.clear()
        for inner in graph:
            release(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def release_readers_outside(scopes: Sequence[tuple[ir.Graph, list[ir.Node]]]) -> None:
    """Takes the values of a model from all nodes that are not in it, which nothing will put back.

    Args:
        scopes: All graphs of the model, as ``scopes_of`` gives them.
    """
    inside = {node for _, nodes in scopes for node in nodes}
    values = [output for _, nodes in scopes for node in nodes for output in node.outputs]
    for graph, _ in scopes:
        values += (*graph.inputs, *graph.initializers.data.values())
    for usage in [usage for value in values for usage in value.uses() if usage.node not in inside]:
        usage.node.replace_input_with(usage.idx, None)
