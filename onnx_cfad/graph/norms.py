"""Which roots are norms: the p-th root of a sum of p-th powers has a kink at zero, where a root alone has a pole.

Written as ``Sqrt(ReduceSum((a - b)^2))`` or ``Pow(ReduceSum(Pow(a - b, p)), 1 / p)``, as exporters write distances,
norms and standard deviations, its chain rule is infinity times zero at zero. The function is that of ReduceL2, and has
its derivative there: 0, which is PyTorch's for torch.cdist, torch.norm and torch.std.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.graph.signs import Sign, sign_of
from onnx_cfad.graph.trips import constant_of

_DEEP = 64  # nodes followed upwards
_MANY = 256  # terms of a sum that are looked at
_ALMOST = 0.999  # torch.onnx writes the p-th root of torch.cdist as the power 1 / (p + 1e-6)
_ONE_OPERAND = frozenset(
    ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice", "Gather")
    + ("ReduceSum", "ReduceMean", "ReduceMax", "Relu", "Clip", "Tile", "Abs")
)
_POWERS = {"Abs": 1.0, "ReduceL1": 1.0, "ReduceL2": 1.0, "ReduceSumSquare": 2.0}


def is_norm(root: ir.Node | None) -> bool:
    """Whether ``root``, a Sqrt or a Pow, is a norm: at zero every term under it is zero, and so is its derivative."""
    if root is None or root.op_type not in ("Sqrt", "Pow"):
        return False
    exponent = 0.5 if root.op_type == "Sqrt" else _number(root.inputs[1])
    if exponent is None or not 0 < exponent < 1:
        return False
    power = _power(root.inputs[0], _DEEP)
    return power is not None and power > 1 and power * exponent >= _ALMOST


def _power(value: ir.Value | None, depth: int) -> float | None:
    """The p for which ``value`` is a sum of positive multiples of p-th powers of absolute values, or None.

    The least p where there are several.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or depth == 0:
        return None
    inner = _power(node.inputs[0], depth - 1) if node.op_type in {*_ONE_OPERAND, "Pow", "Sqrt"} else None
    if node.op_type in _ONE_OPERAND and inner is not None:
        return inner
    if node.op_type in _POWERS:
        return _POWERS[node.op_type]
    if node.op_type == "Sqrt":
        return None if inner is None else inner / 2
    if node.op_type == "Pow":
        return _power_of_pow(_number(node.inputs[1]), inner)
    if node.op_type == "Einsum":
        terms = str(node.attributes["equation"].value).partition("->")[0].replace(" ", "").split(",")
        return 2.0 if len(terms) == 2 and len(set(terms)) == 1 and len(set(node.inputs)) == 1 else None
    return _power_of_several(node, depth)


def _power_of_pow(exponent: float | None, inner: float | None) -> float | None:
    if exponent is None or exponent <= 0:
        return None
    return exponent * inner if inner is not None else exponent if exponent % 2 == 0 else None


def _power_of_several(node: ir.Node, depth: int) -> float | None:
    """The power of a product of one value with itself, of a multiple, of a sum, of a choice or of several together."""
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return 2 * (_power(node.inputs[0], depth - 1) or 1.0)
    if node.op_type in ("Mul", "Div"):
        sides = [(0, 1), (1, 0)] if node.op_type == "Mul" else [(0, 1)]
        found = [_power(node.inputs[x], depth - 1) for x, factor in sides if _is_factor(node.inputs[factor])]
        return next((power for power in found if power is not None), None)
    if node.op_type in ("Add", "Sum"):
        return _least(_terms(node), depth // 2)
    if node.op_type in ("Where", "Concat"):
        return _least(node.inputs[1:] if node.op_type == "Where" else node.inputs, depth // 2)
    return None


def _least(values: Sequence[ir.Value | None], depth: int) -> float | None:
    """The least power of ``values``, numbers that are not negative left aside; None where one has none."""
    powers = [_power(value, depth) for value in values if constant_of(value) is None or not sign_of(value)]
    known = [power for power in powers if power is not None]
    return min(known) if known and len(known) == len(powers) else None


def _terms(node: ir.Node) -> list[ir.Value | None]:
    """What a tree of Add and Sum adds up."""
    found: list[ir.Value | None] = []
    pending = list(node.inputs)
    while pending and len(found) < _MANY:
        value = pending.pop()
        inner = None if value is None else value.producer()
        if inner is not None and inner.op_type in ("Add", "Sum"):
            pending += inner.inputs
        else:
            found.append(value)
    return [*found, *pending]


def _is_factor(value: ir.Value | None) -> bool:
    """Whether ``value`` is a number that nothing differentiates and that keeps signs: positive, or made of lengths."""
    known = constant_of(value)
    return sign_of(value) == Sign.POSITIVE if known is not None else _is_of_lengths(value, _DEEP)


def _is_of_lengths(value: ir.Value | None, depth: int) -> bool:
    if constant_of(value) is not None:
        return True
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    inputs = [x for x in node.inputs if x is not None]
    return node.op_type in ("Shape", "Size") or (bool(inputs) and all(_is_of_lengths(x, depth // 2) for x in inputs))


def _number(value: ir.Value | None) -> float | None:
    known = constant_of(value)
    return float(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
