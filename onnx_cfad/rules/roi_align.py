"""RoiAlign: bilinear samples of regions, averaged or their largest in each bin.

A region's samples in one axis are one matrix [bins, elements], so the average is two products for each region. The
regions move the samples: their derivative is that of the matrices. In mode max a bin is the largest of four terms for
each sample, a weight times an element each, as ONNX defines it; ties share evenly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.rules.decomposition import pulled_through
from onnx_cfad.rules.registry import vjp


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
) -> tuple[Callable[[], Expr | None], Callable[[], Expr | None], None]:
    def through(index: int) -> Expr | None:
        written = largest_of_regions if mode == "max" else averages_of_regions
        return pulled_through(written, [ct], [y], [x, rois, batch_indices])[index]

    def by_x() -> Expr | None:
        if mode == "max":
            return through(0)
        rows, columns = samples(
            x, rois, coordinate_transformation_mode, output_height, output_width, sampling_ratio, spatial_scale
        )
        height, width = rows.matrix(x.dim(2)), columns.matrix(x.dim(3))
        by_row = op.MatMul(op.Transpose(height, perm=[0, 2, 1]).unsqueeze([1]), ct.cast(height.dtype))
        parts = op.MatMul(by_row, width.unsqueeze([1])).cast(ct.dtype)  # [R, C, H, W]
        return summed_by_owner(parts, batch_indices.cast(ir.DataType.INT64), x)

    return by_x, lambda: through(1), None


def summed_by_owner(parts: Expr, owners: Expr, x: Expr) -> Expr:
    """The sum of the regions' ``parts`` [R, C, H, W] for each sample of x [N, C, H, W]."""
    numbers = op.Range(0, op.Squeeze(x.dim(0), [0]), 1).unsqueeze([1])
    owns = op.Cast(op.Equal(numbers, owners.unsqueeze([0])), to=int(parts.dtype))  # [N, R]
    return op.MatMul(owns, op.Flatten(parts, axis=1)).reshape(x.shape)


def averages_of_regions(
    x: Expr,
    rois: Expr,
    batch_indices: Expr,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Expr:
    """The operator in mode avg: rows @ x @ transpose(columns) for each region."""
    rows, columns = samples(
        x, rois, coordinate_transformation_mode, output_height, output_width, sampling_ratio, spatial_scale
    )
    height, width = rows.matrix(x.dim(2)), columns.matrix(x.dim(3))
    owned = _owned(x, batch_indices).cast(height.dtype)
    by_row = _ranked(op.MatMul(height.unsqueeze([1]), owned), 4)
    return op.MatMul(by_row, _ranked(op.Transpose(width, perm=[0, 2, 1]), 3).unsqueeze([1])).cast(x.dtype)


def largest_of_regions(
    x: Expr,
    rois: Expr,
    batch_indices: Expr,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Expr:
    """The operator in mode max: each bin's largest product of a weight and an element, over samples and corners."""
    rows, columns = samples(
        x, rois, coordinate_transformation_mode, output_height, output_width, sampling_ratio, spatial_scale
    )
    (by_row, tall, there), (by_column, broad, across) = (
        each.corners(x.dim(axis)) for each, axis in ((rows, 2), (columns, 3))
    )
    owned = _owned(x, batch_indices).cast(by_row.dtype)
    picked = _ranked(op.MatMul(by_row.unsqueeze([1]), owned), 4)
    turned = _ranked(op.Transpose(by_column, perm=[0, 2, 1]), 3).unsqueeze([1])
    elements = _ranked(op.MatMul(picked, turned), 4)  # [R, C, bins * G * 2, bins * G * 2]
    terms = elements * tall.unsqueeze([1, 3]) * broad.unsqueeze([1, 2])
    present = op.And(there.unsqueeze([1, 3]), across.unsqueeze([1, 2]))
    bins = [0, 0, output_height, -1, output_width, op.Shape(across, start=1, end=2)]
    parts = [x.builder.constant(np.asarray([b], np.int64)) if isinstance(b, int) else b for b in bins]
    parts[5] = op.Div(parts[5], output_width)
    view = op.Reshape(where(present, terms, -np.inf), op.Concat(*parts, axis=0))
    return op.ReduceMax(_ranked(view, 6), [3, 5], keepdims=0).cast(x.dtype)


def _owned(x: Expr, owners: Expr) -> Expr:
    """The sample of each region: [R, C, H, W]."""
    return _ranked(op.Gather(x, owners, axis=0), 4)


def _ranked(x: Expr, rank: int) -> Expr:
    """``x``, whose number of axes is ``rank``."""
    x.value.shape = ir.Shape([None] * rank)
    return x


def samples(
    x: Expr, rois: Expr, transformation: str, height: int, width: int, ratio: int, scale: float
) -> tuple[Samples, Samples]:
    """Where the regions are sampled: in rows, in columns."""
    half = transformation == "half_pixel"
    # x1, y1, x2, y2 of [R, 1] each
    corners = op.Split(rois.cast(_computed_in(x)), axis=1, num_outputs=4, outputs=4)
    left, top, right, bottom = ((corner * scale - (0.5 if half else 0.0)) for corner in corners)
    return Samples(top, bottom, height, ratio, half), Samples(left, right, width, ratio, half)


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
        u, count, places = self._sampled()
        share = op.Cast(places < count, to=int(u.dtype)) / op.Max(count, 1.0)  # [R, G]
        size = length.cast(u.dtype)
        weight = where(op.Or(u < -1.0, u > size), 0, share.unsqueeze([1]))
        clamped = op.Min(op.Max(u, 0.0), size - 1)
        tent = op.Relu(1 - op.Abs(clamped.unsqueeze([3]) - _numbers(length, u)))  # [R, bins, G, length]
        return op.Squeeze(op.MatMul(weight.unsqueeze([2]), tent), [2])

    def corners(self, length: Expr) -> tuple[Expr, Expr, Expr]:
        """The two elements beside each sample: unit vectors [R, P, length], weights [R, P], whether it counts [R, P].

        P counts bins, samples of a bin and the two of them. A sample outside has weights 0.
        """
        u, count, places = self._sampled()
        size = length.cast(u.dtype)
        clamped = op.Min(op.Max(u, 0.0), size - 1)
        low = op.Floor(clamped)
        apart = clamped - low
        inside = op.Not(op.Or(u < -1.0, u > size))
        pair = [part.unsqueeze([3]) for part in (low, op.Min(low + 1, size - 1))]
        weights = [where(inside, part, 0).unsqueeze([3]) for part in (1 - apart, apart)]
        units = op.Equal(op.Concat(*pair, axis=3).unsqueeze([4]), _numbers(length, u)).cast(u.dtype)
        weight = op.Concat(*weights, axis=3)
        counts = op.Expand((places < count).unsqueeze([1, 3]), op.Shape(weight))
        flat = (0, -1)
        return op.Reshape(units, op.Concat([0, -1], length, axis=0)), weight.reshape(flat), counts.reshape(flat)

    def _sampled(self) -> tuple[Expr, Expr, Expr]:
        """The samples [R, bins, G], how many a bin has [R, 1], and the numbers 0 to G - 1."""
        size = self.end - self.start
        if not self.half_pixel:
            size = op.Max(size, 1.0)
        builder = size.builder
        if self.ratio > 0:
            count = builder.constant([[float(self.ratio)]], size.dtype)
            most = builder.constant(self.ratio)
        else:
            count = op.Ceil(size * (1.0 / self.bins))
            most = op.Max(op.Cast(op.ReduceMax(count, keepdims=0), to=int(ir.DataType.INT64)), 1)
        step = size * (1.0 / self.bins)
        places = op.Range(0, most, 1).cast(size.dtype)
        offsets = (places + 0.5) / op.Max(count, 1.0) * step  # [R, G]
        firsts = self.start + builder.constant(range(self.bins), size.dtype) * step  # [R, bins]
        return firsts.unsqueeze([2]) + offsets.unsqueeze([1]), count, places


def _numbers(length: Expr, u: Expr) -> Expr:
    """The numbers 0 to ``length`` - 1 in the type of ``u``."""
    return op.Range(0, op.Squeeze(length, [0]), 1).cast(u.dtype)
