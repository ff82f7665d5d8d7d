"""The adjoint of a correlation by its kernel, as one Conv whose places are pairs of a tap and a channel.

Channels follow the elements of the last spatial axis along that axis: a dilation of as many elements as there are
channels goes from one element to the next, and what lies between two places is the channels of one tap:

``w[m, k, c] = sum over n, i of y[n, m, i] * x[n, (i * stride + k - begin) * C + c]``.

Batch and places are summed together, in one product that is as wide as taps and channels. One Conv over the batch
(channels and batch changing places) makes a product for each channel instead, as wide as there are taps. In ONNX
Runtime 1.32 it takes 1.0 to 3.5 times as long, and a Scan of products tap by tap 0.95 to 5.8 times.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.rules.windows import Size, Window, aligned, crop, size_of, unless_ones, vector


def applies(x: Expr, y: Expr, windows: Sequence[Window], group: int) -> bool:
    """Whether channels and taps are known, there is more than one tap, and those of the last axis leave no gap."""
    if all(window.kernel == 1 for window in windows):
        return False
    numbers = [size_of(x, 1), size_of(y, 1), *(size for w in windows for size in (w.kernel, w.begin, w.end, w.slack))]
    return group == 1 and windows[-1].dilation == 1 and all(isinstance(number, int) for number in numbers)


def tap_convolution(x: Expr, y: Expr, windows: Sequence[Window]) -> Expr:
    """The adjoint: x [N, C, signal...], y [N, M, count...] to [M, C, taps...]."""
    seeds = wide(y)
    rows, columns = _known(size_of(y, 1)), _known(size_of(x, 1))
    x, pads, excess = aligned(x.cast(seeds.dtype), windows)
    axes, rank = list(range(2, 2 + len(windows))), len(windows)
    found = op.Conv(
        _joined(x, windows, columns),
        _swapped(seeds, axes),
        strides=unless_ones(window.dilation for window in windows),
        dilations=_joint([window.stride for window in windows], columns),
        pads=[*_joint(pads[:rank], columns), *_joint(pads[rank:], columns)],
    )
    taps = [
        _known(window.kernel) + _known(more) // window.dilation for window, more in zip(windows, excess, strict=True)
    ]
    found.value.shape = ir.Shape([1, rows, *_joint(taps, columns)])
    if columns == 1:
        kernel = found.reshape(vector([rows, 1, *taps], x.builder))
    else:
        kernel = op.Transpose(op.Reshape(found, [rows, *taps, columns]), perm=[0, rank + 1, *range(1, rank + 1)])
    longer = {axis: (0, window.kernel) for axis, window in enumerate(windows) if taps[axis] != window.kernel}
    return crop(kernel, longer).cast(y.dtype)


def _joined(x: Expr, windows: Sequence[Window], columns: int) -> Expr:
    """[N, C, signal...] to [1, N, signal... * C]."""
    axes = list(range(2, 2 + len(windows)))
    last = op.Transpose(x, perm=[0, *axes, 1]) if columns != 1 else x
    sizes = [size_of(x, 0), *(window.signal for window in windows)]
    sizes[-1] = sizes[-1] * columns
    unknown = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    if unknown:  # one size need not be told; the batch may be empty, which leaves no other one to be concluded
        sizes[0 if 0 in unknown else unknown[0]] = -1
    shape = vector([1, *sizes], x.builder)
    return op.Reshape(last, shape) if unknown else last.reshape(shape)


def _swapped(y: Expr, axes: Sequence[int]) -> Expr:
    """[N, M, count...] to [M, N, count...]; with one of a kind the elements stay in their order."""
    sizes = [size_of(y, axis) for axis in (1, 0, *axes)]
    if 1 in sizes[:2] and all(isinstance(size, int) for size in sizes):
        return y.reshape(vector(sizes, y.builder))
    return op.Transpose(y, perm=[1, 0, *axes])


def _joint(numbers: Sequence[int], columns: int) -> list[int]:
    """Numbers of elements along each axis, where every element of the last one is ``columns`` elements."""
    return [*numbers[:-1], numbers[-1] * columns]


def _known(size: Size | None) -> int:
    assert isinstance(size, int)
    return size
