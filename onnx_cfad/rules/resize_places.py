"""What Resize reads, as a function of the scales or of the region of interest: the derivative by these, axis by axis.

Element o of an axis is made of the elements i around the place c(o), with weights w((i - c(o)) m), where m is the scale
below 1 with antialias, and 1 without. The place moves with the scale, or with the region (tf_crop_and_resize); the size
of the result, a rounded product, has no derivative. A linear place that is clamped to the axis does not move, and
neither does one whose element is extrapolated. Elements outside the axis count as its ends, or not at all
(exclude_outside). At a kink of linear weights, a place on an element, both sides count evenly.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op, where

_KINK = 1e-5  # of an element: as near to a kink, rounding decides about its side, and both sides count evenly
_AROUND = 3  # elements beyond the support of the weights: places lie up to one element outside the axis


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a Resize.

    Attributes:
        before: Its number of elements S (scalar).
        after: That of the result, O (scalar).
        scale: Its factor (scalar).
        region: Where its region of interest starts and ends, as parts of it (scalars), with tf_crop_and_resize.
        coordinates: The attribute coordinate_transformation_mode.
        cubic: The mode is cubic, with this coefficient; None for linear.
        excluded: The attribute exclude_outside.
        antialias: The attribute.
    """

    before: Expr
    after: Expr
    scale: Expr
    region: tuple[Expr, Expr] | None
    coordinates: str
    cubic: float | None
    excluded: bool
    antialias: bool

    def by_scale(self, products: Expr) -> Expr:
        """The derivative by the scale (scalar) from ``products`` [S, O] of cotangents and inputs."""
        s, o = self.scale, self._places_of_result()
        squared = s * s
        slope = {
            "half_pixel": -(o + 0.5) / squared,
            "pytorch_half_pixel": where(op.Greater(self.after, 1), -(o + 0.5) / squared, 0),
            "half_pixel_symmetric": (self.after / 2 - o - 0.5) / squared,
            "asymmetric": -o / squared,
        }.get(self.coordinates, o * 0)
        narrowed = where(op.Less(s, 1), s * 0 + 1, 0) if self.antialias else s * 0
        return self._moved(products, slope, narrowed)

    def by_region(self, products: Expr) -> tuple[Expr, Expr]:
        """The derivatives by start and end of the region (scalars)."""
        part = self._part()
        last = self.before - 1
        still = self.scale * 0
        return self._moved(products, last * (1 - part), still), self._moved(products, last * part, still)

    def _places_of_result(self) -> Expr:
        return op.Range(0, op.Cast(self.after, to=ir.DataType.INT64), 1).cast(self.scale.dtype)

    def _part(self) -> Expr:
        """Where in the region an element of the result lies: [O]."""
        o, several = self._places_of_result(), op.Greater(self.after, 1)
        return where(several, o / where(several, self.after - 1, 1), 0.5)

    def _places(self) -> Expr:
        """c: [O]."""
        s, o = self.scale, self._places_of_result()
        if self.region is not None:
            start, end = self.region
            return (self.before - 1) * (start + (end - start) * self._part())
        centred = (o + 0.5) / s - 0.5
        if self.coordinates == "pytorch_half_pixel":
            return where(op.Greater(self.after, 1), centred, 0)
        if self.coordinates == "half_pixel_symmetric":
            return self.before / 2 * (1 - self.after / (self.before * s)) + centred
        if self.coordinates == "align_corners":
            several = op.Greater(self.after, 1)
            return where(several, o * (self.before - 1) / where(several, self.after - 1, 1), 0)
        return o / s if self.coordinates == "asymmetric" else centred

    def _moved(self, products: Expr, slope: Expr, narrowed: Expr) -> Expr:
        """The derivative (scalar) along places that move by ``slope`` [O] and a stretch that moves by ``narrowed``."""
        places, stretch = self._places(), op.Min(self.scale, 1) if self.antialias else self.scale * 0 + 1
        outside = op.Or(op.Less(places, 0), op.Greater(places, self.before - 1))
        if self.region is not None or (self.cubic is None and not self.antialias):
            slope = where(outside, 0, slope)
            places = op.Min(op.Max(places, 0), self.before - 1)
        most = op.Cast(op.Ceil(2 / stretch), to=ir.DataType.INT64)
        around = op.Add(most, _AROUND)
        size = op.Cast(self.before, to=ir.DataType.INT64)
        elements = op.Range(op.Neg(around), op.Add(size, around), 1)
        i = elements.cast(places.dtype).unsqueeze([1])
        inside = op.And(op.GreaterOrEqual(i, 0), op.Less(i, self.before))
        away = (i - places) * stretch
        weight, steep = _cubic(away, self.cubic) if self.cubic is not None else _linear(away)
        moved = steep * ((i - places) * narrowed - slope * stretch)
        if self.region is not None:
            moved = where(outside, 0, moved)
        if self.excluded:
            weight, moved = where(inside, weight, 0), where(inside, moved, 0)
        if self.excluded or self.antialias:
            whole = op.ReduceSum(weight, [0], keepdims=1)
            moved = (moved - weight / whole * op.ReduceSum(moved, [0], keepdims=1)) / whole
        held = op.Min(op.Max(elements, 0), op.Sub(size, 1))
        return op.ReduceSum(op.Gather(products, held, axis=0) * moved, keepdims=0)


def _linear(u: Expr) -> tuple[Expr, Expr]:
    """max(0, 1 - |u|), and its derivative."""
    t = op.Abs(u)
    steep = op.Min(op.Max((1 - t) / _KINK + 0.5, 0), 1)
    return op.Max(1 - t, 0), -op.Min(op.Max(u / _KINK, -1), 1) * steep


def _cubic(u: Expr, a: float) -> tuple[Expr, Expr]:
    """Keys' cubic convolution kernel with coefficient ``a``, and its derivative."""
    t = op.Abs(u)
    near, far = op.LessOrEqual(t, 1), op.Less(t, 2)
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    inner_slope = (3 * (a + 2) * t - 2 * (a + 3)) * t
    outer_slope = (3 * a * t - 10 * a) * t + 8 * a
    weight = where(near, inner, where(far, outer, 0))
    return weight, op.Sign(u) * where(near, inner_slope, where(far, outer_slope, 0))
