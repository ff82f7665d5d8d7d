"""What a value cannot be: which values are certainly positive, or at least never negative."""

from __future__ import annotations

import enum

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.trips import constant_of


class Sign(enum.IntEnum):
    """What is certain about every element of a value, in exact arithmetic; a greater one includes the lesser ones."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2


_DEEP = 64  # nodes followed upwards: what keeps a value from zero stands near it
_POSITIVE = frozenset(("Exp", "Sigmoid", "Softplus", "Cosh"))
_NONNEGATIVE = frozenset(("Abs", "Relu", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Softmax", "HardSigmoid", "Acosh"))
_SIZES = frozenset(("Shape", "Size"))
_OF_ALL = frozenset(("Sum", "Mul", "Div", "Concat", "Min", "Mean"))  # as certain as the least certain operand
_OF_FIRST = frozenset(
    ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice", "Gather")
    + ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "Sqrt", "Tile", "Split")
)


def sign_of(value: ir.Value | None, depth: int = _DEEP) -> Sign:
    """What the nodes that make ``value`` say about its elements. Lengths count as positive."""
    known = constant_of(value)
    if known is not None:
        return _of_numbers(known)
    node = None if value is None else value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or depth == 0:
        return Sign.ANY
    if node.op_type in _POSITIVE or node.op_type in _SIZES:
        return Sign.POSITIVE
    if node.op_type in _NONNEGATIVE:
        return Sign.NONNEGATIVE
    return _of_operands(node, depth - 1)


def _of_numbers(known: np.ndarray) -> Sign:
    if known.dtype.kind not in "fiu" and known.dtype.name != "bfloat16":
        return Sign.ANY
    return Sign.POSITIVE if (known > 0).all() else Sign.NONNEGATIVE if (known >= 0).all() else Sign.ANY


def _of_operands(node: ir.Node, depth: int) -> Sign:
    operands = [value for value in node.inputs if value is not None]
    if node.op_type == "Mul" and len(set(operands)) == 1:
        return max(Sign.NONNEGATIVE, sign_of(operands[0], depth))
    if node.op_type == "Pow":
        return max(Sign.NONNEGATIVE if is_even(operands[1]) else Sign.ANY, sign_of(operands[0], depth))
    if node.op_type == "Clip":
        low = node.inputs[1] if len(node.inputs) > 1 else None
        return sign_of(operands[0], depth) if low is None else max(sign_of(low, depth), sign_of(operands[0], depth))
    if node.op_type == "Where":
        return min(sign_of(operands[1], depth), sign_of(operands[2], depth))
    if node.op_type in _OF_FIRST:
        return sign_of(operands[0], depth)
    if node.op_type not in _OF_ALL and node.op_type not in ("Add", "Max"):
        return Sign.ANY
    signs = sorted(sign_of(value, depth // 2) for value in operands)
    return _of_sum_or_extreme(node.op_type, signs)


def _of_sum_or_extreme(op_type: str, signs: list[Sign]) -> Sign:
    if op_type == "Max":
        return signs[-1]
    if op_type in ("Add", "Sum", "Mean") and signs[0] >= Sign.NONNEGATIVE:
        return signs[-1]
    return signs[0]


def is_even(exponent: ir.Value | None) -> bool:
    """Whether ``exponent`` is one even number."""
    known = constant_of(exponent)
    return known is not None and known.size == 1 and float(known.reshape(-1)[0]) % 2 == 0
