"""What neither build of TVM takes as one program, seen before it is asked: its own messages do not say it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, label, loop_site
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import nodes_of


def why_kept(model: ir.Model) -> str | None:
    """Why ``model``, whose types have been inferred, is left to a host program; None where nothing is known to be.

    The axes of a reduction that the run decides, branches that give one value in several shapes, and carries whose
    shape changes: all of these are values whose shapes are known only while the model runs. The host program compiles
    bodies for the shapes that they meet.
    """
    return next((reason for node in nodes_of(model.graph) for reason in _reasons(node)), None)


def _reasons(node: ir.Node) -> Iterator[str]:
    if node.op_type.startswith("Reduce") and len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = node.inputs[1]
        if constant_of(axes) is None and axes.shape is not None and axes.shape.dims != (0,):
            yield f"{label(node)} reduces over the axes '{axes.name}', which the run decides"
    if is_branch(node):
        then, otherwise = branch_site(node).branches
        for output, a, b in zip(node.outputs, then.outputs, otherwise.outputs, strict=True):
            if _differ(a, b):
                yield f"{label(node)}: '{output.name}' is {a.shape} or {b.shape}, as its branches give it"
    if is_loop(node):
        for carry in loop_site(node).carries:
            if _widened(carry.initial, carry.entry):
                yield f"{label(node)}: the carry '{carry.entry.name}' changes its shape {carry.initial.shape}"


def _differ(a: ir.Value, b: ir.Value) -> bool:
    """Whether two tensors have other shapes for certain."""
    if not isinstance(a.type, ir.TensorType) or a.shape is None or b.shape is None:
        return False
    if a.shape.rank() != b.shape.rank():
        return True
    return any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a.shape, b.shape, strict=True))


def _widened(initial: ir.Value, entry: ir.Value) -> bool:
    """Whether the body of a loop does not keep a dimension that the initial carry has for certain."""
    if not isinstance(entry.type, ir.TensorType) or initial.shape is None or not initial.shape.is_static():
        return False
    return entry.shape is None or not entry.shape.is_static()
