"""Straight-through estimators: what takes the place of a derivative that is 0 almost everywhere, where it is asked for.

Rounding and sign pass the cotangent. Quantisation passes it where the number is within the range of the integer type,
and its scale gets the share of it that rounding leaves (Esser et al. 2020, https://arxiv.org/abs/1902.08153).
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.rules.casts import along_axis, sum_along_axis
from onnx_cfad.rules.registry import straight_through


@straight_through("Round", "Floor", "Ceil", "Sign")
def unchanged(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct


@straight_through("QuantizeLinear")
def quantize_linear(
    ct: Expr, y: Expr, x: Expr, y_scale: Expr, y_zero_point: Expr | None = None, *, axis: int, block_size: int | None
) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    """The cotangent is that of the quantised number; like torch.fake_quantize it passes where that is in range."""
    ct = ct.cast(x.dtype)
    scale = along_axis(y_scale.cast(x.dtype), x, axis, block_size or 0)
    steps = x / scale

    def inside() -> Expr:
        low, high, whole = _range(y)
        number = op.Round(steps) if whole else steps
        if y_zero_point is not None and whole:
            number = number + along_axis(y_zero_point.cast(x.dtype), x, axis, block_size or 0)
        return where(op.And(number >= low, number <= high), ct / scale, 0)

    def by_scale() -> Expr:
        return sum_along_axis(-(inside() * steps), x, y_scale, axis, block_size or 0).cast(y_scale.dtype)

    return inside, by_scale


def _range(y: Expr) -> tuple[float, float, bool]:
    """The smallest and the largest number of the quantised type, and whether it has whole numbers only."""
    kind = y.dtype.numpy()
    if y.dtype.is_integer():
        known = ml_dtypes.iinfo(kind) if kind.kind == "V" else np.iinfo(kind)
        return float(known.min), float(known.max), True
    return float(ml_dtypes.finfo(kind).min), float(ml_dtypes.finfo(kind).max), False
