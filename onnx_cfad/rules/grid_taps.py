"""Coordinates of a sampling grid to the elements they read: per axis an index, a weight and the weight's derivative.

Each tap beyond the border is moved (padding_mode border, reflection) or taken out (zeros); a coordinate to reflect is
moved before that. ONNX Runtime and PyTorch do so; the reference evaluator also moves a cubic one to the border first.
On a kink (a whole number, the border) the derivative is that of the side that the operator computes.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, ones_like, op, where
from onnx_cfad.rules.windows import Size

_CUBIC = -0.75  # the coefficient that ONNX fixes, called alpha there and A in PyTorch


@dataclasses.dataclass(frozen=True)
class Taps:
    """The elements of one axis that P points read, T each.

    Attributes:
        index: [N, P, T], int64, within the axis.
        weight: [N, P, T], 0 for a tap that is not there.
        slope: Derivative of ``weight`` by the coordinate [N, P, T]; None where it is zero everywhere.
    """

    index: Expr
    weight: Expr
    slope: Expr | None


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a coordinate becomes taps.

    Attributes:
        mode: "nearest", "linear" or "cubic".
        padding_mode: "zeros", "border" or "reflection".
        align_corners: -1 and 1 are the centres of the outer elements, not their outer edges.
    """

    mode: str
    padding_mode: str
    align_corners: bool

    def taps(self, grid: Expr, size: Size) -> Taps:
        """The taps in an axis of ``size`` elements at the coordinates ``grid`` [N, P] in [-1, 1]."""
        length = float(size) if isinstance(size, int) else size.cast(grid.dtype)
        scale = (length - 1.0) * 0.5 if self.align_corners else length * 0.5
        u = (grid + 1) * scale if self.align_corners else (grid + 1) * scale - 0.5
        taps = self.taps_at(u, size)
        return taps if taps.slope is None else dataclasses.replace(taps, slope=taps.slope * scale)

    def taps_at(self, u: Expr, size: Size) -> Taps:
        """The taps in an axis of ``size`` elements at ``u`` [N, P], counted in elements."""
        length = float(size) if isinstance(size, int) else size.cast(u.dtype)
        if self.mode == "nearest":
            index = self._moved(op.Round(u), length)[0].unsqueeze([2])
            return self._within(index, ones_like(index), None, length)
        v, moved = self._moved(u, length)
        low = op.Floor(v)
        offsets, weights, slopes = _linear(v - low) if self.mode == "linear" else _cubic(v - low)
        slope = _stacked(slopes) if moved is None else _stacked(slopes) * moved.unsqueeze([2])
        index = low.unsqueeze([2]) + v.builder.constant(offsets, v.dtype)
        return self._within(index, _stacked(weights), slope, length)

    def _borders(self, length: Expr | float) -> tuple[float, Expr | float]:
        return (0.0, length - 1.0) if self.align_corners else (-0.5, length - 0.5)

    def _moved(self, u: Expr, length: Expr | float) -> tuple[Expr, Expr | None]:
        """The coordinate moved within the borders where it is reflected, and the derivative of that (None for 1)."""
        return _reflected(u, *self._borders(length)) if self.padding_mode == "reflection" else (u, None)

    def _within(self, index: Expr, weight: Expr, slope: Expr | None, length: Expr | float) -> Taps:
        """Taps at whole numbers ``index``: moved into the axis, or taken out where padding is zeros."""
        if self.padding_mode == "reflection":
            index = _reflected(index, *self._borders(length))[0]
        if self.padding_mode == "zeros":
            inside = op.And(index >= 0.0, index <= length - 1.0)
            weight = where(inside, weight, 0)
            slope = None if slope is None else where(inside, slope, 0)
        return Taps(op.Cast(_clamped(index, length), to=int(ir.DataType.INT64)), weight, slope)


def _clamped(u: Expr, length: Expr | float) -> Expr:
    return op.Min(op.Max(u, 0.0), length - 1.0)


def _reflected(u: Expr, low: float, high: Expr | float) -> tuple[Expr, Expr]:
    """``u`` mirrored at both borders until it is between them, and the sign of the derivative.

    Where the borders are one place, all taps are the one element, whatever their weights.
    """
    span = high - low
    offset = u - low
    period = max(2 * span, 1.0) if isinstance(span, float) else op.Max(2 * span, 1.0)
    turn = offset - 2 * span * op.Floor(offset / period)
    ones = ones_like(u)
    return low + span - op.Abs(turn - span), where(turn > span, -ones, ones)


def _stacked(parts: list[Expr]) -> Expr:
    return concat([part.unsqueeze([2]) for part in parts], axis=2)


Weights = tuple[list[int], list[Expr], list[Expr]]


def _linear(t: Expr) -> Weights:
    """Offsets, weights and their derivatives at the fraction ``t``."""
    ones = ones_like(t)
    return [0, 1], [1 - t, t], [-ones, ones]


def _cubic(t: Expr) -> Weights:
    """Offsets, weights and their derivatives at the fraction ``t``: cubic convolution (Keys 1981)."""
    far, near, ahead, end = t + 1, t, 1 - t, 2 - t
    weights = [_outer(far), _inner(near), _inner(ahead), _outer(end)]
    slopes = [_outer_slope(far), _inner_slope(near), -_inner_slope(ahead), -_outer_slope(end)]
    return [-1, 0, 1, 2], weights, slopes


def _inner(d: Expr) -> Expr:
    return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1


def _inner_slope(d: Expr) -> Expr:
    return (3 * (_CUBIC + 2) * d - 2 * (_CUBIC + 3)) * d


def _outer(d: Expr) -> Expr:
    return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC


def _outer_slope(d: Expr) -> Expr:
    return (3 * _CUBIC * d - 10 * _CUBIC) * d + 8 * _CUBIC
