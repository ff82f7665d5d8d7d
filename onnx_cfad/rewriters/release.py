"""Cuts the subgraphs of a node that was taken out of its graph off from what is around them.

A value counts as read while a node anywhere has it as an input, also a node in a branch that is no longer part of the
model: its producer would stay, though what it reads itself may be gone.
"""

from __future__ import annotations

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
