"""Convolutions: y is bilinear in signal and kernel, and each cotangent is a convolution again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr
from onnx_cfad.rules.correlation import correlate, correlate_taps, spread
from onnx_cfad.rules.registry import nondifferentiable, vjp
from onnx_cfad.rules.windows import Size, Window, extent, maximum, per_axis, size_of, sliding

Results = tuple[Callable[[], Expr], ...]


@vjp("Conv")
def conv(
    ct: Expr,
    y: Expr,
    x: Expr,
    w: Expr,
    b: Expr | None = None,
    *,
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
) -> Results:
    axes = _spatial(x, w)
    windows = sliding(
        [size_of(x, axis) for axis in axes],
        list(kernel_shape or (size_of(w, axis) for axis in axes)),
        auto_pad=auto_pad,
        pads=pads,
        strides=strides,
        dilations=dilations,
    )
    return (
        lambda: spread(ct, w, windows, group=group),
        lambda: correlate_taps(x, ct, windows, group=group),
        lambda: _bias(ct, axes),
    )


@vjp("ConvTranspose")
def conv_transpose(
    ct: Expr,
    y: Expr,
    x: Expr,
    w: Expr,
    b: Expr | None = None,
    *,
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    group: int,
    kernel_shape: Sequence[int] | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> Results:
    axes = _spatial(x, w)
    rank = len(axes)
    kernels: list[Size] = list(kernel_shape or (size_of(w, axis) for axis in axes))
    wanted = list(output_shape[-rank:]) if output_shape else None
    each = zip(per_axis(strides, rank), per_axis(dilations, rank), per_axis(output_padding, rank, 0), strict=True)
    pads = per_axis(pads, 2 * rank, 0)
    windows: list[Window] = []
    for axis, (stride, dilation, surplus) in enumerate(each):
        count = size_of(x, axes[axis])
        if wanted is not None or auto_pad.startswith("SAME"):
            length = wanted[axis] if wanted is not None else count * stride
            window = _fitted(length, count, kernels[axis], stride, dilation, surplus, upper=auto_pad == "SAME_UPPER")
        else:
            begin, end = (pads[axis], pads[axis + rank]) if auto_pad == "NOTSET" else (0, 0)
            signal = size_of(ct, axes[axis])
            window = Window(kernels[axis], stride, dilation, begin, end, signal, count, surplus)
        windows.append(window)
    return (
        lambda: correlate(ct, w, windows, group=group),
        lambda: correlate_taps(ct, x, windows, group=group),
        lambda: _bias(ct, axes),
    )


def _fitted(
    length: Size, count: Size, kernel: Size, stride: int, dilation: int, surplus: int, *, upper: bool
) -> Window:
    """The window of a transposed convolution whose padding follows from the ``length`` of its result."""
    whole = (count - 1) * stride + extent(kernel, dilation)
    total = maximum(whole + surplus - length, 0)
    half = total // 2 if isinstance(total, int) else total / 2
    begin, end = (half, total - half) if upper else (total - half, half)
    slack = length + total - whole
    return Window(kernel, stride, dilation, begin, end, length, count, slack if isinstance(slack, int) else None)


def _spatial(x: Expr, w: Expr) -> list[int]:
    return list(range(2, w.rank if w.has_rank else x.rank))


def _bias(ct: Expr, axes: Sequence[int]) -> Expr:
    return wide(ct).sum([0, *axes]).cast(ct.dtype)


nondifferentiable("ConvInteger", "QLinearConv", reason="its operands and its result are integers")
