"""Clipping: of the final gradients, and of the carry's cotangent in every iteration of a reverse loop.

Back-propagation through time can explode; clipping only the final gradient is too late then. Conventions are
PyTorch's: ``value`` clamps elements, ``norm`` scales by ``min(1, norm / (total + 1e-6))`` where the total is the
2-norm of all gradients together (for a carry: of its cotangent).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import PlanError

_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Clipping:
    """What is clipped, and how.

    Attributes:
        value: Largest absolute value of an element; None for no limit.
        norm: Largest 2-norm; None for no limit.
        carries: Also clip the cotangent of every carry in every iteration of a reverse loop.
        replace_nan: Elements that are NaN become 0 first; otherwise NaN stays NaN, so that it is seen.
    """

    value: float | None = None
    norm: float | None = None
    carries: bool = False
    replace_nan: bool = False

    def __post_init__(self) -> None:
        if self.carries and self.value is None and self.norm is None:
            raise PlanError("clip_carries", "there is no limit to clip to", "Give clip_value or clip_norm too.")

    @property
    def is_on(self) -> bool:
        """Whether anything is clipped or replaced."""
        return self.value is not None or self.norm is not None or self.replace_nan

    def gradients(self, gradients: Sequence[Expr]) -> list[Expr]:
        """The final gradients, clipped together."""
        cleaned = [self._cleaned(g) for g in gradients]
        if self.norm is None or not cleaned:
            return cleaned
        squares = [op.ReduceSumSquare(_wide(g), keepdims=0) for g in cleaned]
        dtype = max((s.dtype for s in squares), key=lambda d: d.itemsize)
        total = op.Sqrt(op.Sum(*(s.cast(dtype) for s in squares)) if len(squares) > 1 else squares[0].cast(dtype))
        scale = self._scale(total)
        return [_like(op.Mul(g, scale.cast(g.dtype)), g) for g in cleaned]

    def carry(self, cotangent: Expr) -> Expr:
        """The cotangent of a carry, as it goes on to the iteration before."""
        if not self.carries or not cotangent.is_tensor:
            return cotangent
        cleaned = self._cleaned(cotangent)
        if self.norm is None:
            return cleaned
        scale = self._scale(op.Sqrt(op.ReduceSumSquare(_wide(cleaned), keepdims=0)))
        return _like(op.Mul(cleaned, scale.cast(cleaned.dtype)), cotangent)

    def _cleaned(self, x: Expr) -> Expr:
        result = where(op.IsNaN(x), 0, x) if self.replace_nan else x
        if self.value is not None:
            result = _clamped(result, _in_type("value", self.value, x.dtype))
        return _like(result, x)

    def _scale(self, total: Expr) -> Expr:
        """The factor that brings ``total`` down to the norm; NaN stays NaN."""
        assert self.norm is not None
        norm = _in_type("norm", self.norm, total.dtype)
        return where(op.Greater(total, norm), op.Div(norm, op.Add(total, _EPSILON)), op.Add(op.Mul(total, 0), 1))


def _in_type(name: str, limit: float, dtype: ir.DataType) -> float:
    """``limit`` as it is in an element type: the largest number where it is beyond that.

    Raises:
        PlanError: It is 0 in that type, which would make every gradient 0.
    """
    kind = dtype.numpy()
    most, least = float(ml_dtypes.finfo(kind).max), float(ml_dtypes.finfo(kind).smallest_subnormal)
    if limit < least:
        what = f"it is 0 in {dtype.name.lower()}, whose least number above 0 is {least:.2g}"
        raise PlanError(f"clip_{name} {limit}", what, "Give a greater limit.")
    return min(limit, most)


def _clamped(x: Expr, limit: float) -> Expr:
    """Elements beyond the limits set to them; NaN, which compares false, stays."""
    upper = where(op.Greater(x, limit), limit, x)
    return where(op.Less(upper, -limit), -limit, upper)


def _wide(x: Expr) -> Expr:
    return x.cast(ir.DataType.FLOAT) if x.dtype in _SIXTEEN_BIT else x


def _like(result: Expr, x: Expr) -> Expr:
    if result.value is not x.value and result.value.shape is None:
        result.value.shape = x.value.shape
    return result
