"""Outputs of primal nodes as rules see them. One that a rule reads and the model left out is handed out from now on."""

from __future__ import annotations

from typing import TypeVar

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr
from onnx_cfad.errors import UnsupportedOp

T = TypeVar("T")


def each_of(outputs: T | tuple[T, ...]) -> tuple[T, ...]:
    """What a rule gets for the outputs of a node, as a tuple also where there is one output only."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def handed_out(y: Expr | tuple[Expr, ...], index: int, dtype: ir.DataType, shape: ir.Shape | None) -> Expr:
    """Output ``index`` of the node that made ``y``, of the given element type and shape.

    Raises:
        UnsupportedOp: There is no node to ask.
    """
    first = y[0] if isinstance(y, tuple) else y
    node = first.value.producer()
    if node is None:
        raise UnsupportedOp(f"value '{first.value.name}'", "its node is not at hand to give a further output")
    if len(node.outputs) <= index:
        node.resize_outputs(index + 1)
    for position, output in enumerate(node.outputs):
        if not output.name and position in (0, index):
            output.name = first.builder.namer.fresh(f"{node.name or node.op_type}.{position}")
    output = node.outputs[index]
    if output.type is None:
        output.type, output.shape = ir.TensorType(dtype), shape
    return first.builder.expr(output)
