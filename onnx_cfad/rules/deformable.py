"""Deformable convolution: a convolution of the values that are read at moved places.

    v[n, c, k, p] = mask[n, g, k, p] * x interpolated at (place of tap k of output p, plus offset[n, g, k, p])
    y[n, m, p] = sum over c, k of w[m, c, k] * v[n, c, k, p] + b[m]

where g is the offset group of channel c. Beyond the border x is zero.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, Update, concat, op
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.grid_taps import Sampling
from onnx_cfad.rules.interpolation import Interpolation
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.windows import Size, per_axis, size_of, vector


@dataclasses.dataclass(frozen=True)
class Deformable:
    """A DeformConv node with K taps in r spatial axes, P outputs, G offset groups and D channel groups.

    Attributes:
        ct: Cotangent of its output [N, M, ...].
        x: Its input [N, C, ...].
        w: Its weights [M, C / D, ...].
        offset: Where taps are moved [N, G * K * r, ...].
        mask: Factors of the taps [N, G * K, ...], or None.
        kernel: Taps in each spatial axis.
        starts: Place of the first tap of the first output in each axis.
        strides: Steps of the outputs.
        dilations: Steps of the taps.
        group: The number D.
        offset_group: The number G.
    """

    ct: Expr
    x: Expr
    w: Expr
    offset: Expr
    mask: Expr | None
    kernel: Sequence[int]
    starts: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    group: int
    offset_group: int

    @property
    def taps(self) -> int:
        """The number K."""
        return int(np.prod(self.kernel))

    @functools.cached_property
    def outputs(self) -> list[Size]:
        """The spatial sizes of the output."""
        return [size_of(self.ct, axis + 2) for axis in range(len(self.kernel))]

    @functools.cached_property
    def count(self) -> Size:
        """The number P."""
        return functools.reduce(lambda a, b: a * b, self.outputs)

    def shaped(self, x: Expr, sizes: Sequence[Size]) -> Expr:
        """``x`` in another shape."""
        return op.Reshape(x, vector(sizes, x.builder))

    @functools.cached_property
    def read(self) -> Interpolation:
        """The values of x at the moved places: samples are N * G, channels C / G, points K * P."""
        rank = len(self.kernel)
        moved = self.shaped(self.offset, [-1, self.taps, rank, self.count])
        parts = op.Split(moved, axis=2, num_outputs=rank, outputs=rank)
        sampling = Sampling("linear", "zeros", align_corners=False)
        axes = [
            sampling.taps_at(
                op.Flatten(op.Add(part.squeeze([2]), self._places(axis)), axis=1), size_of(self.x, axis + 2)
            )
            for axis, part in enumerate(parts)
        ]
        channels = size_of(self.x, 1)
        each = channels // self.offset_group if isinstance(channels, int) else channels / self.offset_group
        spatial = [size_of(self.x, axis + 2) for axis in range(rank)]
        return Interpolation(self.shaped(self.x, [-1, each, *spatial]), axes, 2**rank)

    def _places(self, axis: int) -> Expr:
        """Where each tap of each output is in one axis before it is moved [K, P]."""
        taps = [k[axis] * self.dilations[axis] for k in itertools.product(*map(range, self.kernel))]
        builder, dtype = self.x.builder, self.offset.dtype
        size = self.outputs[axis]
        count = builder.constant(size) if isinstance(size, int) else op.Squeeze(size, [0])
        steps = op.Range(builder.constant(0), count, builder.constant(1)) * self.strides[axis] + self.starts[axis]
        steps = op.Reshape(steps, [-1] + [1] * (len(self.kernel) - axis - 1))
        flat = op.Reshape(op.Expand(steps, vector(self.outputs, builder)), [1, -1])
        return flat.cast(dtype) + builder.constant(np.reshape(taps, (-1, 1)), dtype)

    @functools.cached_property
    def factors(self) -> Expr | None:
        """The mask of each point [N * G, 1, K * P]."""
        return None if self.mask is None else self.shaped(self.mask, [-1, 1, self.taps * self.count])

    @functools.cached_property
    def grouped(self) -> Expr:
        """The cotangent of the output by channel groups [N, D, M / D, P]."""
        return self.shaped(self.ct, [size_of(self.ct, 0), self.group, -1, self.count])

    @functools.cached_property
    def ct_values(self) -> Expr:
        """The cotangent of the masked values [N * G, C / G, K * P]."""
        outer = size_of(self.w, 0)
        rows = outer // self.group if isinstance(outer, int) else outer / self.group
        weights = self.shaped(self.w, [self.group, rows, -1])
        columns = op.MatMul(op.Transpose(weights, perm=[0, 2, 1]), self.grouped)  # [N, D, C / D * K, P]
        return self.shaped(columns, [*self._rows(), self.taps * self.count])

    def _rows(self) -> list[Size]:
        return [-1, size_of(self.read.x, 1)]

    def by_x(self, total: Expr | None) -> Expr:
        """``total`` plus the cotangent of the input."""
        base = None if total is None else total.reshape(self.read.x.shape)
        ct = self.ct_values if self.factors is None else self.ct_values * self.factors
        return self.read.by_x(base, ct).reshape(self.x.shape)

    def by_weights(self) -> Expr:
        """The cotangent of the weights."""
        values = self.read.values()
        values = values if self.factors is None else values * self.factors
        columns = self.shaped(values, [size_of(self.ct, 0), self.group, -1, self.count])
        product = wide(op.MatMul(self.grouped, op.Transpose(columns, perm=[0, 1, 3, 2])))
        return product.sum([0]).cast(self.w.dtype).reshape(self.w.shape)

    def by_offset(self) -> Expr:
        """The cotangent of the offsets."""
        ct = self.ct_values if self.factors is None else self.ct_values * self.factors
        parts = [self.shaped(part, [-1, self.taps, 1, self.count]) for part in self.read.by_coordinates(ct)]
        return concat(parts, axis=2).cast(self.offset.dtype).reshape(self.offset.shape)

    def by_mask(self) -> Expr:
        """The cotangent of the mask."""
        assert self.mask is not None
        summed = wide(self.ct_values * self.read.values()).sum([1])
        return summed.cast(self.mask.dtype).reshape(self.mask.shape)


@vjp("DeformConv")
def deform_conv(
    ct: Expr,
    y: Expr,
    x: Expr,
    w: Expr,
    offset: Expr,
    b: Expr | None = None,
    mask: Expr | None = None,
    *,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    offset_group: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> tuple[Update | Callable[[], Expr], ...]:
    rank = (w if w.has_rank else x).rank - 2
    kernel = [size for size in kernel_shape or w.dims[2:] if size is not None]
    if len(kernel) != rank:
        raise UnsupportedOp("", "DeformConv of a kernel whose size is not known", "Give it the attribute kernel_shape.")
    node = Deformable(
        ct,
        x,
        w,
        offset,
        mask,
        kernel,
        [-begin for begin in per_axis(pads, 2 * rank, 0)[:rank]],
        per_axis(strides, rank),
        per_axis(dilations, rank),
        group,
        offset_group,
    )
    return (
        Update(node.by_x),
        node.by_weights,
        node.by_offset,
        lambda: wide(ct).sum([0, *range(2, rank + 2)]).cast(ct.dtype),
        node.by_mask,
    )
