"""Sampling at the points of a grid: y = sum over taps of weight * x[tap], with one weight a spatial axis.

Nearest sampling is piecewise constant in the grid.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, Update, concat, op, zeros_like
from onnx_cfad.rules.grid_taps import Sampling, Taps
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import scatter_add
from onnx_cfad.rules.windows import Size, size_of, vector

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names before opset 20


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A GridSample node: N samples, C channels, P points, K taps a point in r spatial axes.

    Attributes:
        ct: Cotangent of its output [N, C, P].
        x: Its input [N, C, ...].
        grid: Its grid [N, ..., r], the last spatial axis first.
        rank: The number r of spatial axes.
        sampling: How coordinates become taps.
    """

    ct: Expr
    x: Expr
    grid: Expr
    rank: int
    sampling: Sampling

    @property
    def count(self) -> int:
        """The number K of taps a point."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.sampling.mode] ** self.rank

    @functools.cached_property
    def sizes(self) -> list[Size]:
        """The spatial sizes of ``x``."""
        return [size_of(self.x, axis + 2) for axis in range(self.rank)]

    @functools.cached_property
    def axes(self) -> list[Taps]:
        """The taps of each spatial axis of ``x``."""
        kind = self.grid.dtype if self.grid.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        points = op.Reshape(self.grid.cast(kind), [0, -1, self.rank])
        coordinates = op.Split(points, axis=2, num_outputs=self.rank, outputs=self.rank)
        return [
            self.sampling.taps(coordinate.squeeze([2]), size)
            for coordinate, size in zip(reversed(coordinates), self.sizes, strict=True)
        ]

    def spread_out(self, x: Expr, axis: int) -> Expr:
        """What belongs to the taps of one axis [N, P, T] with an axis of length 1 for each other spatial axis."""
        return x.unsqueeze([k + 2 for k in range(self.rank) if k != axis])

    def combined(self, factors: list[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
        """One factor an axis [N, P, T] joined for every combination of taps: [N, 1, P * K]."""
        whole = functools.reduce(join, [self.spread_out(f, axis) for axis, f in enumerate(factors)])
        return op.Reshape(op.Flatten(whole, axis=1), [0, 1, -1])

    @functools.cached_property
    def indices(self) -> Expr:
        """The row-major number of each tap's element [N, C, P * K]."""
        strides: list[Size] = [1]
        for size in reversed(self.sizes[1:]):
            strides.insert(0, size * strides[0])
        parts = [
            taps.index if stride == 1 else taps.index * stride for taps, stride in zip(self.axes, strides, strict=True)
        ]
        numbers = self.combined(parts, operator.add)
        return op.Expand(numbers, vector([1, size_of(self.x, 1), 1], self.x.builder))

    def at_taps(self, x: Expr) -> Expr:
        """What belongs to points [N, C, P] once for each of their taps: [N, C, P * K]."""
        if self.count == 1:
            return x
        return op.Reshape(op.Expand(x.unsqueeze([3]), [1, 1, 1, self.count]), [0, 0, -1])

    def by_x(self, total: Expr | None) -> Expr:
        """``total`` plus the cotangent of ``x``."""
        weights = self.combined([taps.weight for taps in self.axes], operator.mul)
        planes = op.Reshape(self.x, [0, 0, -1])
        base = None if total is None else op.Reshape(total, [0, 0, -1])
        shares = (self.at_taps(self.ct.cast(weights.dtype)) * weights).cast(self.ct.dtype)
        return scatter_add(base, planes, self.indices, shares, 2).reshape(self.x.shape)

    def by_grid(self) -> Expr:
        """The cotangent of the grid [N, ..., r]."""
        if self.sampling.mode == "nearest":
            return zeros_like(self.grid)
        planes = op.Reshape(self.x, [0, 0, -1])
        values = op.GatherElements(planes, self.indices, axis=2)
        kind = self.axes[0].weight.dtype
        pull = (self.at_taps(self.ct.cast(kind)) * values.cast(kind)).sum([1], keepdims=True)
        parts = [self._by_coordinate(pull, axis) for axis in reversed(range(self.rank))]
        return concat(parts, axis=2).cast(self.grid.dtype).reshape(self.grid.shape)

    def _by_coordinate(self, pull: Expr, axis: int) -> Expr:
        """The cotangent of one coordinate [N, P, 1], from that of each tap's weight [N, 1, P * K]."""
        factors = [taps.slope if k == axis else taps.weight for k, taps in enumerate(self.axes)]
        slopes = self.combined([factor for factor in factors if factor is not None], operator.mul)
        return op.Reshape(pull * slopes, [0, -1, self.count]).sum([2], keepdims=True)


@vjp("GridSample")
def grid_sample(
    ct: Expr, y: Expr, x: Expr, grid: Expr, *, align_corners: int, mode: str, padding_mode: str
) -> tuple[Update, Callable[[], Expr]]:
    rank = (x if x.has_rank else grid).rank - 2
    sampling = Sampling(_MODES.get(mode, mode), padding_mode, bool(align_corners))
    node = Sampled(op.Reshape(ct, [0, 0, -1]), x, grid, rank, sampling)
    return Update(node.by_x), node.by_grid


@vjp("AffineGrid")
def affine_grid(ct: Expr, y: Expr, theta: Expr, size: Expr, *, align_corners: int) -> tuple[Expr, None]:
    """The grid is linear in theta; the coordinates it multiplies are the grid of the identity, with a one added."""
    known = theta.dims[1] if theta.has_rank else None
    rank = y.rank - 2 if known is None else known
    unit = ct.builder.constant(np.eye(rank, rank + 1)[None], theta.dtype)
    one_sample = concat([ct.builder.constant([1]), op.Slice(size, [1], [2**62], [0])])
    coordinates = op.Reshape(op.AffineGrid(unit, one_sample, align_corners=align_corners), [-1, rank])
    homogeneous = op.Pad(coordinates, [0, 0, 0, 1], 1.0)
    points = op.Reshape(ct, [0, -1, rank])
    return op.MatMul(op.Transpose(points, perm=[0, 2, 1]), homogeneous), None
