"""Operators that only move elements: their cotangent is moved back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, concat, op, zeros_like
from onnx_cfad.rules.outputs import handed_out
from onnx_cfad.rules.padding import pad_along
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import ascending, unpicked


@vjp("Reshape", "Flatten")
def reshape(ct: Expr, y: Expr, x: Expr, shape: Expr | None = None) -> Expr:
    return ct.reshape(x.shape)


@vjp("Squeeze")
def squeeze(ct: Expr, y: Expr, x: Expr, axes: Expr | None = None) -> Expr:
    return op.Unsqueeze(ct, _vector(axes)) if axes is not None and _names_axes(axes) else ct.reshape(x.shape)


@vjp("Unsqueeze")
def unsqueeze(ct: Expr, y: Expr, x: Expr, axes: Expr) -> Expr:
    return op.Squeeze(ct, _vector(axes)) if _names_axes(axes) else ct.reshape(x.shape)


def _names_axes(axes: Expr) -> bool:
    """Whether there is certainly an axis: ONNX Runtime 1.32 squeezes by none of them as if they were not given."""
    return axes.has_rank and (axes.rank == 0 or bool(axes.dims[0]))


def _vector(axes: Expr) -> Expr:
    """Axes as a vector; runtimes accept a scalar for Unsqueeze but not for Squeeze."""
    return axes if axes.has_rank and axes.rank == 1 else axes.reshape([-1])


@vjp("Transpose")
def transpose(ct: Expr, y: Expr, x: Expr, *, perm: Sequence[int] | None) -> Expr:
    return op.Transpose(ct, perm=None if perm is None else [int(axis) for axis in np.argsort(perm)])


@vjp("Expand", broadcasts=True)
def expand(ct: Expr, y: Expr, x: Expr, shape: Expr) -> Expr:
    return ct


@vjp("Tile")
def tile(ct: Expr, y: Expr, x: Expr, repeats: Expr) -> Expr:
    blocks, axes = _tile_blocks(x, repeats)
    total = op.ReduceSum(wide(ct).reshape(blocks), axes, keepdims=0) if axes is not None else ct
    return total.cast(x.dtype)


def _tile_blocks(x: Expr, repeats: Expr) -> tuple[Expr, Expr | None]:
    """The output's shape with every repeated axis [r * d] as [r, d], and the axes of the repeats (None: no axis)."""
    counts = repeats.const
    if counts is None or not x.has_rank or None in x.dims:
        blocks = op.Reshape(op.Concat(repeats.unsqueeze([1]), x.shape.unsqueeze([1]), axis=1), [-1])
        return blocks, op.Range(0, op.Squeeze(op.Shape(blocks), [0]), 2)
    shape: list[int | None] = []
    axes: list[int] = []
    for count, dim in zip(counts, x.dims, strict=True):
        if count != 1:
            axes.append(len(shape))
            shape.append(int(count))
        shape.append(dim)
    return x.builder.constant(np.asarray(shape, np.int64)), x.builder.constant(np.asarray(axes)) if axes else None


@vjp("Concat")
def concat_(ct: Expr, y: Expr, *xs: Expr, axis: int) -> tuple[Callable[[], Expr], ...]:
    def part(index: int) -> Expr:
        if len(xs) == 1:
            return ct
        sizes = concat([x.dim(axis) for x in xs])
        return op.Split(ct, sizes, axis=axis, outputs=len(xs))[index]

    return tuple((lambda index=index: part(index)) for index in range(len(xs)))


@vjp("Split")
def split(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    sizes: Expr | None = None,
    *,
    axis: int,
) -> Expr:
    cts = ct if isinstance(ct, tuple) else (ct,)
    zeros = lambda index: zeros_like(handed_out(y, index, x.dtype, None))  # noqa: E731
    return concat([zeros(index) if part is None else part for index, part in enumerate(cts)], axis)


@vjp("Pad")
def pad(
    ct: Expr,
    y: Expr,
    x: Expr,
    pads: Expr,
    constant_value: Expr | None = None,
    axes: Expr | None = None,
    *,
    mode: str,
) -> tuple[Callable[[], Expr] | None, ...]:
    if mode != "constant":
        return lambda: unpicked(ct, x, lambda numbers: op.Pad(numbers, pads, None, axes, mode=mode)), None
    # Negative pads crop: this crops what was padded and pads what was cropped.
    opposite = -pads if pads.const is None else [-int(n) for n in pads.const]
    back = lambda: op.Pad(ct, opposite) if axes is None else pad_along(ct, opposite, axes)  # noqa: E731
    if constant_value is None:
        return back, None
    return back, None, lambda: _pad_value(ct, x, pads, constant_value, axes)


def _pad_value(ct: Expr, x: Expr, pads: Expr, constant_value: Expr, axes: Expr | None) -> Expr:
    """The sum of the cotangent over the elements that padding added."""
    one = ct.builder.constant(1, ct.dtype)
    added = op.Pad(zeros_like(x), pads, one) if axes is None else pad_along(zeros_like(x), pads, axes, one)
    return _number_like(wide(op.Where(op.Equal(added, 1), ct, 0)).sum().cast(ct.dtype), constant_value)


def _number_like(total: Expr, x: Expr) -> Expr:
    """A scalar in the shape of ``x``, which has one element: [] or [1]."""
    return total if x.has_rank and x.rank == 0 else total.reshape(x.shape)


@vjp("CenterCropPad")
def center_crop_pad(ct: Expr, y: Expr, x: Expr, shape: Expr, *, axes: Sequence[int] | None) -> Expr:
    # Cropping and padding both put the odd element at the end, so each undoes the other.
    dims = x.shape if axes is None else op.Gather(x.shape, list(axes), axis=0)
    return op.CenterCropPad(ct, dims, axes=axes)


@vjp("DepthToSpace")
def depth_to_space(ct: Expr, y: Expr, x: Expr, *, blocksize: int, mode: str) -> Expr:
    blocks = op.SpaceToDepth(ct, blocksize=blocksize)  # channels ordered (block, channel), as mode DCR has them
    return blocks if mode == "DCR" else _swapped(blocks, blocksize**2, ct.dim(1)).reshape(x.shape)


@vjp("SpaceToDepth")
def space_to_depth(ct: Expr, y: Expr, x: Expr, *, blocksize: int, mode: str | None) -> Expr:
    return op.DepthToSpace(ct, blocksize=blocksize, mode=mode or "DCR")


def _swapped(blocks: Expr, count: int, channels: Expr) -> Expr:
    """[N, count * C, H, W] with channels ordered (block, channel) to [N, C, count, H * W]."""
    target = concat([blocks.dim(0), blocks.builder.constant(np.asarray([count], np.int64)), channels])
    rest = op.ReduceProd(op.Shape(blocks, start=2), [0], keepdims=1)
    return op.Transpose(blocks.reshape(concat([target, rest])), perm=[0, 2, 1, 3])


@vjp("ReverseSequence")
def reverse_sequence(ct: Expr, y: Expr, x: Expr, sequence_lens: Expr, *, batch_axis: int, time_axis: int) -> Expr:
    return op.ReverseSequence(ct, sequence_lens, batch_axis=batch_axis, time_axis=time_axis)


@vjp("Range")
def range_(ct: Expr, y: Expr, start: Expr, limit: Expr, delta: Expr) -> tuple[Callable[[], Expr] | None, ...]:
    # The limit decides only how many elements there are.
    return (
        lambda: _number_like(wide(ct).sum().cast(ct.dtype), start),
        None,
        lambda: _number_like((wide(ct) * ascending(ct.size).cast(wide(ct).dtype)).sum().cast(ct.dtype), delta),
    )
