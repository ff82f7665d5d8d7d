"""Interpolated reads: y = sum over taps of weight * x[tap], and its adjoints by x and by the coordinates."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.rules.grid_taps import Taps
from onnx_cfad.rules.scatter_add import scatter_add
from onnx_cfad.rules.windows import Size, planes, size_of, vector


@dataclasses.dataclass(frozen=True)
class Interpolation:
    """P points read from each of N samples with C channels, K taps a point.

    Attributes:
        x: What is read [N, C, ...].
        axes: The taps of each spatial axis of ``x``.
        count: The number K: the product of the taps of each axis.
    """

    x: Expr
    axes: Sequence[Taps]
    count: int

    @property
    def _points(self) -> Size:
        """The number P."""
        return size_of(self.axes[0].index, 1)

    @functools.cached_property
    def _indices(self) -> Expr:
        """The row-major number of each tap's element [N, C, P * K]."""
        strides: list[Size] = [1]
        for axis in range(len(self.axes) - 1, 0, -1):
            strides.insert(0, size_of(self.x, axis + 2) * strides[0])
        numbers = [t.index if stride == 1 else t.index * stride for t, stride in zip(self.axes, strides, strict=True)]
        return op.Expand(self._combined(numbers, operator.add), vector([1, size_of(self.x, 1), 1], self.x.builder))

    def _combined(self, factors: Sequence[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
        """One factor an axis [N, P, T] joined for every combination of taps: [N, 1, P * K]."""
        rank = len(factors)
        spread = [f.unsqueeze([k + 2 for k in range(rank) if k != axis]) for axis, f in enumerate(factors)]
        return op.Flatten(functools.reduce(join, spread), axis=1).unsqueeze([1])

    def _at_taps(self, points: Expr) -> Expr:
        """What belongs to points [N, C, P] once for each of their taps: [N, C, P * K]."""
        if self.count == 1:
            return points
        return planes(op.Expand(points.unsqueeze([3]), [1, 1, 1, self.count]))

    @functools.cached_property
    def _weights(self) -> Expr:
        return self._combined([taps.weight for taps in self.axes], operator.mul)

    @functools.cached_property
    def _read(self) -> Expr:
        """The elements that the taps read [N, C, P * K], in the type of the weights."""
        return op.GatherElements(planes(self.x), self._indices, axis=2).cast(self._weights.dtype)

    def values(self) -> Expr:
        """The interpolated values [N, C, P]."""
        products = op.Flatten(self._read * self._weights, axis=2)
        summed = op.Reshape(products, [-1, self.count]).sum([1])
        return summed.reshape(vector([size_of(self.x, 0), size_of(self.x, 1), self._points], self.x.builder))

    def by_x(self, total: Expr | None, ct: Expr) -> Expr:
        """``total`` plus the cotangent of ``x``, from that of the values [N, C, P]."""
        base = None if total is None else planes(total, self.x)
        shares = (self._at_taps(ct.cast(self._weights.dtype)) * self._weights).cast(ct.dtype)
        return scatter_add(base, planes(self.x), self._indices, shares, 2).reshape(self.x.shape)

    def by_coordinates(self, ct: Expr) -> list[Expr]:
        """The cotangent of each axis' coordinates [N, P, 1], from that of the values [N, C, P]."""
        pull = (self._at_taps(ct.cast(self._weights.dtype)) * self._read).sum([1], keepdims=True)
        return [self._by_coordinate(pull, axis) for axis in range(len(self.axes))]

    def _by_coordinate(self, pull: Expr, axis: int) -> Expr:
        factors = [taps.slope if k == axis else taps.weight for k, taps in enumerate(self.axes)]
        slopes = self._combined([factor for factor in factors if factor is not None], operator.mul)
        each = vector([size_of(self.x, 0), self._points, self.count], self.x.builder)
        return (pull * slopes).reshape(each).sum([2], keepdims=True)
