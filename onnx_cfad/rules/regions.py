"""Pooling over regions of interest. RoiAlign averages bilinear samples: linear in x, row by row and column by column.

A region's samples in one axis are one matrix [bins, elements], so the cotangent is two products for each region.
As in PyTorch no derivative passes to the regions themselves.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import UnsupportedOp
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
) -> tuple[Expr, None, None]:
    if mode != "avg":
        raise UnsupportedOp(
            "", "RoiAlign in mode max, whose definition differs between runtimes", "Export it with mode avg."
        )
    half = coordinate_transformation_mode == "half_pixel"
    corners = op.Split(rois.cast(_computed_in(x)), axis=1, num_outputs=4, outputs=4)  # x1, y1, x2, y2 of [R, 1] each
    left, top, right, bottom = ((corner * spatial_scale - (0.5 if half else 0.0)) for corner in corners)
    columns = Samples(left, right, output_width, sampling_ratio, half).matrix(x.dim(3))
    rows = Samples(top, bottom, output_height, sampling_ratio, half).matrix(x.dim(2))
    kind = rows.dtype
    by_row = op.MatMul(op.Transpose(rows, perm=[0, 2, 1]).unsqueeze([1]), ct.cast(kind))
    planes = op.Flatten(op.MatMul(by_row, columns.unsqueeze([1])), axis=1)  # [R, C * H * W]
    numbers = op.Range(0, op.Squeeze(x.dim(0), [0]), 1).unsqueeze([1])
    owns = op.Cast(op.Equal(numbers, batch_indices.cast(ir.DataType.INT64).unsqueeze([0])), to=int(kind))  # [N, R]
    return op.MatMul(owns, planes).cast(ct.dtype).reshape(x.shape), None, None


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
