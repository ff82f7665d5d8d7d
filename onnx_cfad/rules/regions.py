"""MaxRoiPool sends the cotangent to the first largest element of each bin; its regions are rounded to elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op, where
from onnx_cfad.adjoint.subgraph_operators import scan
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.roi_align import summed_by_owner
from onnx_cfad.rules.scatter_add import scatter_add


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
    return summed_by_owner(parts, _owner(op.Transpose(rois, perm=[1, 0])), x), None


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
