"""Where a sliding window stands: per spatial axis its extent, steps and padding, known or computed at run time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from onnx_cfad.adjoint.expr import Builder, Expr, op

Size = int | Expr  # a number of elements; an int64 vector of length 1 where only the run knows it


@dataclasses.dataclass(frozen=True)
class Window:
    """A window that slides along one axis of a padded signal.

    Attributes:
        kernel: Taps of the window.
        stride: Elements from one place of the window to the next.
        dilation: Elements from one tap to the next.
        begin: Padding before the signal.
        end: Padding after the signal.
        signal: Elements of the signal.
        count: Places of the window.
        slack: Padded elements after the last place; None where only the run knows it. Negative where the last
            place reaches beyond the padding (ceil_mode).
        longest_slack: A bound on an unknown slack that is not negative; None where there is none.
    """

    kernel: Size
    stride: int
    dilation: int
    begin: Size
    end: Size
    signal: Size
    count: Size
    slack: int | None
    longest_slack: int | None = None


def size_of(x: Expr, axis: int) -> Size:
    """Dimension ``axis`` of ``x``: a number where it is known."""
    shape = x.value.shape
    known = None if shape is None else shape.dims[axis]
    return known if isinstance(known, int) else x.dim(axis)


def maximum(size: Size, floor: int) -> Size:
    """The larger of a size and a number."""
    return max(size, floor) if isinstance(size, int) else op.Max(size, floor)


def divided_up(size: Size, divisor: int) -> Size:
    """``size / divisor``, rounded up."""
    if isinstance(size, int):
        return -(-size // divisor)
    return size if divisor == 1 else (size + (divisor - 1)) / divisor


def vector(sizes: Sequence[Size], builder: Builder) -> Expr:
    """``sizes`` as one int64 vector: a constant where all are known."""
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) == len(sizes):
        return builder.constant(numbers)
    parts = [builder.constant([size]) if isinstance(size, int) else size for size in sizes]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


def planes(x: Expr, like: Expr | None = None) -> Expr:
    """[N, C, ...] as [N, C, L]. A batch of none has no elements from which L could be found: it is told, or counted.

    Args:
        x: The tensor.
        like: One of the same shape whose sizes may be better known.
    """
    known = x if like is None else like
    sizes = known.dims[2:] if known.has_rank else (None,)
    numbers = [size for size in sizes if size is not None]
    if len(numbers) == len(sizes) and all(numbers):
        return op.Reshape(x, [0, 0, math.prod(numbers)])
    length = op.ReduceProd(op.Shape(known, start=2), keepdims=1)
    return x.reshape(op.Concat(op.Shape(known, end=2), length, axis=0))


def extent(kernel: Size, dilation: int) -> Size:
    """Signal elements from the first tap to the last, both included."""
    return (kernel - 1) * dilation + 1


def per_axis(given: Sequence[int] | None, rank: int, default: int = 1) -> list[int]:
    """An attribute with one number an axis, or its default."""
    return list(given) if given else [default] * rank


def unless_ones(numbers: Iterable[int]) -> list[int] | None:
    """An attribute, left out where it says what its absence says."""
    found = list(numbers)
    return None if all(number == 1 for number in found) else found


def sliding(
    signals: Sequence[Size],
    kernels: Sequence[Size],
    *,
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    ceil_mode: int = 0,
) -> list[Window]:
    """The windows of a convolution or a pooling over ``signals``."""
    rank = len(signals)
    pads = per_axis(pads, 2 * rank, 0) if auto_pad == "NOTSET" else [0] * (2 * rank)
    axes = zip(signals, kernels, per_axis(strides, rank), per_axis(dilations, rank), strict=True)
    windows: list[Window] = []
    for axis, (signal, kernel, stride, dilation) in enumerate(axes):
        if auto_pad.startswith("SAME"):
            windows.append(_same(signal, kernel, stride, dilation, upper=auto_pad == "SAME_UPPER"))
        else:
            windows.append(_explicit(signal, kernel, stride, dilation, pads[axis], pads[axis + rank], ceil_mode))
    return windows


def _explicit(signal: Size, kernel: Size, stride: int, dilation: int, begin: int, end: int, ceil_mode: int) -> Window:
    """A window with given padding; with ``ceil_mode`` the last place may reach beyond it, but not start there."""
    room = signal + (begin + end) - extent(kernel, dilation)
    if isinstance(room, int):
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and isinstance(signal, int) and (count - 1) * stride >= signal + begin:
            count -= 1
        return Window(kernel, stride, dilation, begin, end, signal, count, room - (count - 1) * stride)
    if not ceil_mode:
        return Window(kernel, stride, dilation, begin, end, signal, room / stride + 1, *_slack(stride))
    count = divided_up(room, stride) + 1
    past = op.Cast(op.GreaterOrEqual((count - 1) * stride, signal + begin), to=7)
    slack = _slack(stride) if stride == 1 else (None, None)
    return Window(kernel, stride, dilation, begin, end, signal, count - past, *slack)


def _same(signal: Size, kernel: Size, stride: int, dilation: int, *, upper: bool) -> Window:
    """A window padded so that there are ceil(signal / stride) places."""
    count = divided_up(signal, stride)
    taps = extent(kernel, dilation)
    total = taps - 1 if stride == 1 else maximum((count - 1) * stride + taps - signal, 0)
    half, rest = _halves(total)
    begin, end = (half, rest) if upper else (rest, half)
    slack = signal + total - (count - 1) * stride - taps if stride != 1 else 0
    if isinstance(slack, int):
        return Window(kernel, stride, dilation, begin, end, signal, count, slack)
    return Window(kernel, stride, dilation, begin, end, signal, count, *_slack(stride))


def _slack(stride: int) -> tuple[int | None, int]:
    """What is known of the slack without the signal: the slack, and its bound."""
    return (0 if stride == 1 else None), stride - 1


def _halves(total: Size) -> tuple[Size, Size]:
    """``total`` in two parts, the second the larger one."""
    if isinstance(total, int):
        return total // 2, total - total // 2
    half = total / 2
    return half, total - half


def aligned(x: Expr, windows: Sequence[Window]) -> tuple[Expr, list[int], list[int | None]]:
    """The signal padded so that the last place of the window ends at its end where that is possible.

    Returns:
        The signal (padded already where only the run knows the padding), the padding that is left to do, and per axis
        how many elements are left over after the last place.
    """
    before: list[Size] = []
    after: list[Size] = []
    pads: list[tuple[int, int]] = []
    excess: list[int | None] = []
    for window in windows:
        begin, end = window.begin, window.end
        if not (isinstance(begin, int) and isinstance(end, int)):
            before.append(begin)
            after.append(end)
            begin = end = 0
        else:
            before.append(0)
            after.append(0)
        if window.slack is None:
            pads.append((begin, end))
            excess.append(window.longest_slack)
        else:
            pads.append((begin, max(end - window.slack, 0)))
            excess.append(max(window.slack - end, 0))
    if any(not isinstance(size, int) for size in (*before, *after)):
        x = op.Pad(x, vector([0, 0, *before, 0, 0, *after], x.builder), 0)
    return x, [begin for begin, _ in pads] + [end for _, end in pads], excess


def crop(x: Expr, kept: Mapping[int, tuple[Size, Size]]) -> Expr:
    """Spatial axes of ``x`` cut to (first element, number of elements)."""
    if not kept:
        return x
    starts = vector([start for start, _ in kept.values()], x.builder)
    ends = vector([_sum(start, length) for start, length in kept.values()], x.builder)
    return op.Slice(x, starts, ends, [axis + 2 for axis in kept])


def _sum(a: Size, b: Size) -> Size:
    return b if isinstance(a, int) and a == 0 else a + b
