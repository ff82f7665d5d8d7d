"""The adjoint of a correlation by its kernel, tap by tap: one matrix product over batch and places for each tap.

A Scan over the taps reads the shifted signal and multiplies; no more than one shifted copy is held. Two to three times
faster in ONNX Runtime 1.32 than one Conv over the batch, unless there are few channels or few places. A kernel of one
tap takes no Scan: there a product for each of the batch is faster than the transpositions that one product would need.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.adjoint.subgraph_operators import scan
from onnx_cfad.rules.windows import Size, Window, planes, size_of, vector

_FEW_CHANNELS = 16
_FEW_PLACES = 64


def pays_off(x: Expr, y: Expr, windows: Sequence[Window], group: int) -> bool:
    """Whether products of taps are the faster way for x [N, C, signal...] and y [N, M, count...]."""
    rows, columns = size_of(y, 1), size_of(x, 1)
    taps = _product([window.kernel for window in windows])
    if not (isinstance(taps, int) and isinstance(rows, int) and isinstance(columns, int)):
        return False
    if taps == 1:
        return True
    places = _product([window.count for window in windows])
    if isinstance(places, int) and places < _FEW_PLACES:
        return False
    return min(rows, columns) >= _FEW_CHANNELS * group or columns == group > 1


def tap_products(x: Expr, y: Expr, windows: Sequence[Window], *, group: int) -> Expr:
    """The adjoint: x [N, C, signal...], y [N, M, count...] to [M, C / group, taps...]. Channels and taps are known."""
    kernel = [window.kernel for window in windows if isinstance(window.kernel, int)]
    rows, columns = size_of(y, 1), size_of(x, 1)
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    if all(taps == 1 for taps in kernel):
        product = _only_product(_padded(x, windows, 2), y, windows, group, rows, columns)
    else:
        seeds = wide(y)
        product = _stacked_products(x.cast(seeds.dtype), seeds, windows, group, rows, columns).cast(y.dtype)
    return op.Reshape(product, [rows, columns // group, *kernel])


def _padded(x: Expr, windows: Sequence[Window], first: int) -> Expr:
    """The signal, whose spatial axes start with axis ``first``, with its padding; rank 2 + number of windows."""
    begins, ends = [window.begin for window in windows], [window.end for window in windows]
    if all(isinstance(size, int) and size == 0 for size in (*begins, *ends)):
        return x
    before, behind = [0] * first, [0] * (2 - first)
    return op.Pad(x, vector([*before, *begins, *behind, *before, *ends, *behind], x.builder))


def _stacked_products(x: Expr, y: Expr, windows: Sequence[Window], group: int, rows: int, columns: int) -> Expr:
    """The product for each tap, with the taps last: [M, C, T], or [group, M / group, C / group, T].

    Batch and places are one axis, so that a tap is one product and nothing is left to sum. Channels are the last axis
    of the signal, so that a shifted copy is its matrix without another transposition. With groups they are the first:
    ONNX Runtime 1.32 fuses the transposition with the product, and takes three times as long for an operand that has
    one column (depthwise convolutions) without it. Padding comes behind the transposition, where it moves whole rows of
    channels: a tenth less time for the whole.
    """
    axes = list(range(2, 2 + len(windows)))
    each = columns // group
    signal = op.Transpose(x, perm=[0, *axes, 1] if group == 1 else [1, 0, *axes])
    signal = _padded(signal, windows, 1 if group == 1 else 2)
    read_axes = [axis - 1 for axis in axes] if group == 1 else axes
    flat = op.Reshape(op.Transpose(y, perm=[1, 0, *axes]), [rows, -1] if group == 1 else [group, rows // group, -1])
    starts, ends = _reads(windows, x.builder)
    # The body takes its constants from outside, where the products of other kernels share them.
    wanted_axes, strides = vector(read_axes, x.builder), [window.stride for window in windows]
    steps = None if all(stride == 1 for stride in strides) else vector(strides, x.builder)
    rank_two = vector([-1, each] if group == 1 else [group, each, -1], x.builder)

    def step(inner: Builder, _: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        read = op.Slice(inner.expr(signal.value), *slices, wanted_axes, steps)
        matrix = op.Reshape(read, rank_two)
        if group > 1:
            matrix = op.Transpose(matrix, perm=[0, 2, 1])
        product = op.MatMul(inner.expr(flat.value), matrix)
        product.value.shape = ir.Shape([rows, each] if group == 1 else [group, rows // group, each])
        return [], [product]

    _, (products,) = scan(step, [], [starts, ends], name="taps")
    return op.Transpose(products, perm=[1, 2, 0] if group == 1 else [1, 2, 3, 0])


def _reads(windows: Sequence[Window], builder: Builder) -> tuple[Expr, Expr]:
    """Where in the padded signal each tap reads, from and to: two of [T, number of windows]."""
    kernels = [window.kernel for window in windows if isinstance(window.kernel, int)]
    taps = itertools.product(*map(range, kernels))
    starts = np.asarray([[k * w.dilation for k, w in zip(tap, windows, strict=True)] for tap in taps])
    lengths = _lengths(windows)
    known = [length for length in lengths if isinstance(length, int)]
    ends = (
        builder.constant(starts + known)
        if len(known) == len(lengths)
        else builder.constant(starts) + vector(lengths, builder)
    )
    return builder.constant(starts), ends


def _lengths(windows: Sequence[Window]) -> list[Size]:
    """Elements of the padded signal from the first place of each window to the last, both included."""
    return [(window.count - 1) * window.stride + 1 for window in windows]


def _only_product(x: Expr, y: Expr, windows: Sequence[Window], group: int, rows: int, columns: int) -> Expr:
    """The product for a kernel of one tap: [M, C / group]. Products for each of the batch, which are summed."""
    if not _is_whole(windows):
        axes = list(range(2, 2 + len(windows)))
        ends, steps = vector(_lengths(windows), x.builder), [window.stride for window in windows]
        x = op.Slice(x, [0] * len(windows), ends, axes, steps)
    read = _rows(x, columns // group, windows, group)
    product = op.MatMul(_rows(y, rows // group, windows, group), op.Transpose(read, perm=[0, 2, 1]))
    if group > 1:
        product = op.Reshape(product, [-1, rows, columns // group])
    total = wide(product).sum([0]).cast(product.dtype)
    total.value.shape = ir.Shape([rows, columns // group])
    return total


def _is_whole(windows: Sequence[Window]) -> bool:
    """Whether the only tap reads every element of the padded signal, as far as that is known."""
    return all(window.stride == 1 and window.slack == 0 for window in windows)


def _rows(x: Expr, channels: int, windows: Sequence[Window], group: int) -> Expr:
    """[N, group * c, places...] to [N * group, c, P]."""
    if group == 1:
        return planes(x)
    return op.Reshape(x, vector([-1, channels, _product([w.count for w in windows])], x.builder))


def _product(sizes: Sequence[Size]) -> Size:
    return functools.reduce(lambda a, b: a * b, sizes)
