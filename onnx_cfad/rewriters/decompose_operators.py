"""Operators written in others, where what runs the model lacks them or computes them wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.rewrite_nodes import RewriteNodesPass

Decomposition = Callable[[Recorder, ir.Node], "Sequence[ir.Value] | ir.Value | None"]
"""Records nodes that compute what a node does and gives their results; None where the node can stay."""


class DecomposeOperatorsPass(RewriteNodesPass):
    """Replaces nodes of the default domain by what the table gives for them, in the main graph and all subgraphs.

    Given ``y = Gelu <approximate = "tanh"> (x)``, the result is its formula in Mul, Add and Tanh. The types of values
    have been inferred; those of new ones are not.

    Args:
        table: Decompositions by operator.
    """

    def __init__(self, table: Mapping[str, Decomposition]) -> None:
        super().__init__()
        self._table = table

    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Decomposes a node; what a decomposition writes is not decomposed."""
        decompose = self._table.get(node.op_type)
        return decompose is not None and _replace(graph, node, decompose, Recorder(namer, node.name or node.op_type))


def _replace(graph: ir.Graph, node: ir.Node, decompose: Decomposition, op: Recorder) -> bool:
    found = decompose(op, node)
    if found is None:
        return False
    results = [found] if isinstance(found, ir.Value) else list(found)
    own = {output for inner in op.nodes for output in inner.outputs}
    results = [value if value in own else op.Identity(value) for value in results]
    op.replace(graph, node, results)
    return True


def known(value: ir.Value | None) -> Sequence[float] | None:
    """The elements of a constant, flat; None where only the run knows them."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or value is None or value.is_graph_input():
        return None
    return tensor.numpy().reshape(-1).tolist()


def input_of(node: ir.Node, position: int) -> ir.Value:
    """An input that is always there."""
    value = node.inputs[position]
    assert value is not None, f"{node.op_type} has its input {position}"
    return value


def optional_input(node: ir.Node, position: int) -> ir.Value | None:
    """An input that may be left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def rank_of(value: ir.Value) -> int | None:
    """The number of axes; None where it is not known."""
    return None if value.shape is None else value.shape.rank()


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape where all of it is known."""
    if value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(d) for d in value.shape.dims if isinstance(d, int))
