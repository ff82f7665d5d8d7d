"""Sampling at the points of a grid. Nearest sampling is piecewise constant in the grid."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, Update, concat, op, zeros_like
from onnx_cfad.rules.grid_taps import Sampling
from onnx_cfad.rules.interpolation import Interpolation
from onnx_cfad.rules.reductions import wide_type
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.windows import planes, size_of, vector

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names before opset 20
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@vjp("GridSample")
def grid_sample(
    ct: Expr, y: Expr, x: Expr, grid: Expr, *, align_corners: int, mode: str, padding_mode: str
) -> tuple[Update, Callable[[], Expr]]:
    rank = (x if x.has_rank else grid).rank - 2
    sampling = Sampling(_MODES.get(mode, mode), padding_mode, bool(align_corners))
    points = planes(ct)

    @functools.cache
    def reads() -> Interpolation:
        kind = ir.DataType.DOUBLE if grid.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        places = grid.cast(kind).reshape(vector([size_of(grid, 0), size_of(points, 2), rank], ct.builder))
        last_first = op.Split(places, axis=2, num_outputs=rank, outputs=rank)
        coordinates = [coordinate.squeeze([2]) for coordinate in reversed(last_first)]
        taps = [sampling.taps(u, size_of(x, axis + 2)) for axis, u in enumerate(coordinates)]
        return Interpolation(x, taps, _TAPS[sampling.mode] ** rank)

    def by_grid() -> Expr:
        if sampling.mode == "nearest":
            return zeros_like(grid)
        parts = reads().by_coordinates(points)
        return concat(parts[::-1], axis=2).cast(grid.dtype).reshape(grid.shape)

    return Update(lambda total: reads().by_x(total, points)), by_grid


@vjp("AffineGrid")
def affine_grid(ct: Expr, y: Expr, theta: Expr, size: Expr, *, align_corners: int) -> tuple[Expr, None]:
    """The grid is linear in theta; the coordinates it multiplies are the grid of the identity, with a one added."""
    known = theta.dims[1] if theta.has_rank else None
    rank = y.rank - 2 if known is None else known
    kind = wide_type(theta)  # the products are summed over all points
    unit = ct.builder.constant(np.eye(rank, rank + 1)[None], kind)
    one_sample = concat([ct.builder.constant([1]), op.Slice(size, [1], [2**62], [0])])
    coordinates = op.Reshape(op.AffineGrid(unit, one_sample, align_corners=align_corners), [-1, rank])
    homogeneous = op.Pad(coordinates, [0, 0, 0, 1], 1.0)
    points = ct.cast(kind).reshape(vector([size_of(ct, 0), size_of(coordinates, 0), rank], ct.builder))
    return op.MatMul(op.Transpose(points, perm=[0, 2, 1]), homogeneous).cast(theta.dtype), None
