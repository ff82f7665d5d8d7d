"""Pooling over regions of interest.

RoiAlign averages bilinear samples: a region's samples in one axis are one matrix [bins, elements], so the cotangent is
two products for each region; a derivative by the regions, which move the samples, is refused. MaxRoiPool sends the
cotangent to the first largest element of each bin; its regions are rounded to elements: no derivative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op, scan, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import scatter_add


@vjp("RoiAlign")
def roi_align(
    ct: Expr,
    y: Expr,
    x: Expr,
    rois: Expr,
    batch_indices: Expr,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> tuple[Callable[[], Expr], Callable[[], Expr], None]:
    if mode != "avg":
        raise UnsupportedOp(
            "", "RoiAlign in mode max, whose definition differs between runtimes", "Export it with mode avg."
        )

    def by_rois() -> Expr:
        raise UnsupportedOp(
            "",
            "a derivative by the regions of RoiAlign is wanted",
            "Name them as stop_gradient, as detectors are trained, or leave them out of wrt.",
        )

    half = coordinate_transformation_mode == "half_pixel"

    def by_x() -> Expr:
        # x1, y1, x2, y2 of [R, 1] each
        corners = op.Split(rois.cast(_computed_in(x)), axis=1, num_outputs=4, outputs=4)
        left, top, right, bottom = ((corner * spatial_scale - (0.5 if half else 0.0)) for corner in corners)
        columns = Samples(left, right, output_width, sampling_ratio, half).matrix(x.dim(3))
        rows = Samples(top, bottom, output_height, sampling_ratio, half).matrix(x.dim(2))
        kind = rows.dtype
        by_row = op.MatMul(op.Transpose(rows, perm=[0, 2, 1]).unsqueeze([1]), ct.cast(kind))
        parts = op.MatMul(by_row, columns.unsqueeze([1])).cast(ct.dtype)  # [R, C, H, W]
        return _summed_by_owner(parts, batch_indices.cast(ir.DataType.INT64), x)

    return by_x, by_rois, None


def _summed_by_owner(parts: Expr, owners: Expr, x: Expr) -> Expr:
    """The sum of the regions' ``parts`` [R, C, H, W] for each sample of x [N, C, H, W]."""
    numbers = op.Range(0, op.Squeeze(x.dim(0), [0]), 1).unsqueeze([1])
    owns = op.Cast(op.Equal(numbers, owners.unsqueeze([0])), to=int(parts.dtype))  # [N, R]
    return op.MatMul(owns, op.Flatten(parts, axis=1)).reshape(x.shape)


def _computed_in(x: Expr) -> ir.DataType:
    return x.dtype if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True)
class Samples:
    """Where R regions are sampled along one axis.

    Attributes:
        start: First coordinate of each region [R, 1].
        end: Last coordinate of each region [R, 1].
        bins: Bins of a region.
        ratio: Samples a bin; 0 for as many as the bin has elements, rounded up.
        half_pixel: A region may be smaller than an element.
    """

    start: Expr
    end: Expr
    bins: int
    ratio: int
    half_pixel: bool

    def matrix(self, length: Expr) -> Expr:
        """The weight of each of ``length`` elements in each bin [R, bins, length]."""
        size = self.end - self.start
        if not self.half_pixel:
            size = op.Max(size, 1.0)
        builder = size.builder
        if self.ratio > 0:
            count = builder.constant([[float(self.ratio)]], size.dtype)
            most = builder.constant(self.ratio)
        else:
            count = op.Ceil(size * (1.0 / self.bins))  # [R, 1]
            most = op.Max(op.Cast(op.ReduceMax(count, keepdims=0), to=int(ir.DataType.INT64)), 1)
        step = size * (1.0 / self.bins)
        places = op.Range(0, most, 1).cast(size.dtype)  # [G]
        within = op.Cast(places < count, to=int(size.dtype)) / op.Max(count, 1.0)  # [R, G]
        offsets = (places + 0.5) / op.Max(count, 1.0) * step  # [R, G]
        firsts = self.start + builder.constant(range(self.bins), size.dtype) * step  # [R, bins]
        u = firsts.unsqueeze([2]) + offsets.unsqueeze([1])  # [R, bins, G]
        return _averaged(u, within.unsqueeze([1]), length)


def _averaged(u: Expr, weight: Expr, length: Expr) -> Expr:
    """Bilinear weights [R, bins, length] of samples at ``u`` [R, bins, G], summed with ``weight`` over G."""
    size = length.cast(u.dtype)
    weight = where(op.Or(u < -1.0, u > size), 0, weight)
    clamped = op.Min(op.Max(u, 0.0), size - 1)
    elements = op.Range(0, op.Squeeze(length, [0]), 1).cast(u.dtype)
    tent = op.Relu(1 - op.Abs(clamped.unsqueeze([3]) - elements))  # [R, bins, G, length]
    return op.Squeeze(op.MatMul(weight.unsqueeze([2]), tent), [2])


@vjp("MaxRoiPool")
def max_roi_pool(
    ct: Expr, y: Expr, x: Expr, rois: Expr, *, pooled_shape: Sequence[int], spatial_scale: float
) -> tuple[Expr, None]:
    """One region after the other in a Scan: the largest of each row of a bin is found, then the largest of these."""
    high, wide = pooled_shape

    def one_region(inner: Builder, _: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        roi, seed = slices  # [5], [C, high, wide]
        image = op.Gather(inner.expr(x.value), _owner(roi), axis=0)  # [C, H, W]
        left, top, right, bottom = (_rounded(op.Slice(roi, [k], [k + 1], [0]) * spatial_scale) for k in (1, 2, 3, 4))
        height, width = op.Shape(image, start=1, end=2), op.Shape(image, start=2, end=3)
        rows, columns = _bins(top, bottom, high, height), _bins(left, right, wide, width)  # [high, H], [wide, W]
        in_rows = where(columns, image.unsqueeze([2]), -np.inf)  # [C, H, wide, W]
        places = op.ArgMax(in_rows, axis=3, keepdims=0)  # [C, H, wide]
        largest = op.Transpose(op.ReduceMax(in_rows, [3], keepdims=0), perm=[0, 2, 1])  # [C, wide, H]
        at = op.ArgMax(where(rows.unsqueeze([0, 2]), largest.unsqueeze([1]), -np.inf), axis=3, keepdims=0)
        filled = op.And(_any(rows).unsqueeze([1]), _any(columns).unsqueeze([0]))  # [high, wide]
        by_bin = where(filled, seed, 0)
        by_row = scatter_add(None, places.cast(seed.dtype), at, by_bin, 1)  # [C, H, wide]
        result = scatter_add(None, image, places, by_row, 2)
        result.value.shape = ir.Shape([None, None, None])
        return [], [result]

    _, (parts,) = scan(one_region, [], [rois, ct], name="regions")
    return _summed_by_owner(parts, _owner(op.Transpose(rois, perm=[1, 0])), x), None


def _owner(roi: Expr) -> Expr:
    """The sample that a region [5, ...] belongs to."""
    return op.Cast(op.Gather(roi, roi.builder.constant(0), axis=0), to=int(ir.DataType.INT64))


def _rounded(u: Expr) -> Expr:
    """The nearest whole number, halves away from zero."""
    return op.Sign(u) * op.Floor(op.Abs(u) + 0.5)


def _any(mask: Expr) -> Expr:
    return op.Greater(op.ReduceMax(op.Cast(mask, to=int(ir.DataType.INT32)), [1], keepdims=0), 0)


def _bins(start: Expr, end: Expr, bins: int, size: Expr) -> Expr:
    """Which of ``size`` elements each bin of the region from ``start`` to ``end`` (both within) holds [bins, size]."""
    builder = start.builder
    step = op.Max(end - start + 1, 1.0) * (1.0 / bins)
    first = builder.constant(np.arange(bins), start.dtype)
    low = op.Floor(first * step) + start
    high = op.Ceil((first + 1) * step) + start
    elements = op.Range(0, op.Squeeze(size, [0]), 1).cast(start.dtype).unsqueeze([0])
    return op.And(elements >= low.unsqueeze([1]), elements < high.unsqueeze([1]))
