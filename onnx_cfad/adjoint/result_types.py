"""Types and shapes of recorded nodes, as far as they follow from the operator and its inputs at once."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

_BOOL_OPS = frozenset(
    ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf")
)
_INT64_OPS = frozenset(("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "SequenceLength"))
_OWN_TYPES = frozenset((
    *_BOOL_OPS, *_INT64_OPS, "Cast", "SequenceEmpty", "ConstantOfShape", "Where", "CastLike", "OneHot", "TopK",
    "SequenceAt", "ConcatFromSequence", "SplitToSequence", "SequenceConstruct",
))  # fmt: skip
"""Operators whose result need not have the type of their first input."""

_SAME_SHAPE_OPS = frozenset(
    ("Neg", "Abs", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Erf", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Sign")
    + ("Reciprocal", "Cast", "Identity", "Not", "IsNaN", "IsInf", "Softmax", "Floor", "Ceil", "Round")
)
_BROADCASTING_OPS = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual")
    + ("LessOrEqual", "Where", "Max", "Min", "Mod", "Sum")
)


def result_types(
    op_type: str, values: list[ir.Value | None], attributes: dict[str, Any], outputs: int
) -> list[ir.TypeProtocol]:
    """The types of a recorded node's outputs, where they follow from the operator and its inputs.

    Raises:
        TypeError: They do not: the caller has to give them.
    """
    if op_type not in _OWN_TYPES:
        return [type_of(next((value for value in values if value is not None), None))] * outputs
    tensor = ir.TensorType
    if op_type in _BOOL_OPS:
        return [tensor(ir.DataType.BOOL)]
    if op_type in _INT64_OPS:
        return [tensor(ir.DataType.INT64)] * outputs
    if op_type in ("Cast", "SequenceEmpty"):
        dtype = ir.DataType(attributes.get("to", attributes.get("dtype", 1)))
        return [tensor(dtype) if op_type == "Cast" else ir.SequenceType(tensor(dtype))]
    if op_type == "ConstantOfShape":
        value = attributes.get("value")
        return [tensor(value.dtype if value is not None else ir.DataType.FLOAT)]
    if op_type in ("Where", "CastLike"):
        return [type_of(values[1])]
    if op_type == "OneHot":
        return [type_of(values[2])]
    if op_type == "TopK":
        return [type_of(values[0]), tensor(ir.DataType.INT64)]
    if op_type in ("SequenceAt", "ConcatFromSequence"):
        return [_element_type(type_of(values[0]))]
    return [ir.SequenceType(type_of(values[0]))]  # SplitToSequence, SequenceConstruct


def type_of(value: ir.Value | None) -> ir.TypeProtocol:
    """The ONNX type of ``value``.

    Raises:
        TypeError: There is no value, or its type is unknown.
    """
    if value is None or value.type is None:
        raise TypeError(f"the type of {value!r} is unknown")
    return value.type


def _element_type(type_: ir.TypeProtocol) -> ir.TypeProtocol:
    return type_.elem_type if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else type_


def result_shape(op_type: str, values: list[ir.Value | None]) -> ir.Shape | None:
    """The result's shape where it follows at once; None is always allowed."""
    if op_type == "SequenceAt" and values[0] is not None and values[0].shape is not None:
        return values[0].shape.copy()
    if op_type in _SAME_SHAPE_OPS:
        return values[0].shape if values[0] is not None else None
    if op_type not in _BROADCASTING_OPS:
        return None
    given = [v.shape for v in values if v is not None]
    shapes = [shape for shape in given if shape is None or shape.dims]
    if not shapes:
        return ir.Shape([])
    first = shapes[0]
    if first is None or first.has_unknown_dim() or any(s is not first and s != first for s in shapes[1:]):
        return None
    return first
