"""Lets elementwise operators broadcast what a transformation has expanded for them."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.dims import same_dim
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.rewriters.added_nodes import AddedNodesPass

_BROADCASTING = frozenset(("Add", "Sub", "Mul", "Div", "Where"))


class DropExpandsPass(AddedNodesPass):
    """Replaces an operand that is expanded by what it was expanded from, where another operand is as large anyway.

    Given ``e = Expand (x, s); y = Mul (e, z)`` with z of the shape of e, the result is ``y = Mul (x, z)``. The Expand
    is dead when nothing else reads it; one that is not is left to the subgraphs that read it. It looks at Expands of
    every depth that a transformation added.
    """

    operator = "Expand"

    def rewrite(self, node: ir.Node) -> bool:
        """See ``AddedNodesPass.rewrite``."""
        return _drop(node)


def _drop(node: ir.Node) -> bool:
    expanded, x = node.outputs[0], node.inputs[0]
    if x is None or expanded.shape is None:
        return False
    dropped = False
    for reader, index in list(expanded.uses()):  # one by one: of ``Add (e, e)`` one operand has to stay
        if reader.graph is node.graph and _broadcasts(reader, index, x, expanded.shape):
            reader.replace_input_with(index, x)
            dropped = True
    inside = list(expanded.uses())  # what a subgraph reads of both, ONNX Runtime 1.32 warns of in every session
    readers = {reader for reader, _ in inside}
    if expanded.is_graph_output() or len(readers) < len(inside):
        return dropped
    if all(_broadcasts(reader, index, x, expanded.shape) for reader, index in inside):
        for reader, index in inside:
            reader.replace_input_with(index, x)
        dropped |= bool(inside)
    return dropped


def _broadcasts(reader: ir.Node, index: int, x: ir.Value, whole: ir.Shape) -> bool:
    """Whether the result of ``reader`` has the shape ``whole`` also with ``x`` as its input ``index``."""
    if reader.op_type not in _BROADCASTING or reader.domain not in ("", "ai.onnx"):
        return False
    operands = [value for k, value in enumerate(reader.inputs) if k != index] + [x]
    shapes = [shape for value in operands if value is not None and (shape := _shape_of(value)) is not None]
    return all(
        any(shape.rank() >= back and same_dim(shape[-back], whole[-back]) for shape in shapes)
        for back in range(1, whole.rank() + 1)
    )


def _shape_of(value: ir.Value) -> ir.Shape | None:
    """What is known of the shape: also of what got axes of length 1."""
    node = value.producer()
    if value.shape is not None or node is None or node.op_type != "Unsqueeze":
        return value.shape
    x, axes = node.inputs[0], constant_of(node.inputs[1])
    if x is None or x.shape is None or axes is None:
        return None
    rank, dims = x.shape.rank() + axes.size, iter(x.shape.dims)
    added = {int(axis) % rank for axis in axes.reshape(-1)}
    return ir.Shape([1 if axis in added else next(dims) for axis in range(rank)])
