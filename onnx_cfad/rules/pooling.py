"""Pooling. A maximum sends its cotangent to the selected element; an average or a norm spreads it over the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, Update, op
from onnx_cfad.rules.correlation import spread
from onnx_cfad.rules.reductions import nonzero_norm, per_element
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import scatter_add
from onnx_cfad.rules.windows import Size, Window, planes, size_of, sliding, vector


@vjp("MaxPool")
def max_pool(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    storage_order: int,
    strides: Sequence[int] | None,
) -> Update:
    seed = ct[0] if isinstance(ct, tuple) else ct
    assert seed is not None  # indices carry no derivative
    if isinstance(y, tuple) and y[1].value.name and not storage_order:
        indices = y[1]
    else:
        attributes: dict[str, Any] = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations}
        attributes.update(kernel_shape=kernel_shape, pads=pads, strides=strides)
        types = [x.type, ir.TensorType(ir.DataType.INT64)]
        _, indices = op.MaxPool(x, **attributes, outputs=2, types=types)
    return Update(lambda total: _to_selected(total, x, seed, planes(indices, seed)))


@vjp("GlobalMaxPool")
def global_max_pool(ct: Expr, y: Expr, x: Expr) -> Update:
    return Update(lambda total: _to_selected(total, x, ct, op.ArgMax(planes(x), axis=2, keepdims=1)))


def _to_selected(total: Expr | None, x: Expr, ct: Expr, indices: Expr) -> Expr:
    """``total`` plus ``ct`` at the elements of each plane of x [N, C, ...] that ``indices`` [N, C, L] number.

    ONNX Runtime numbers elements through the whole tensor, the reference evaluator through a plane.
    """
    read = planes(x)
    base = None if total is None else planes(total, x)
    return scatter_add(base, read, op.Mod(indices, read.dim(2)), planes(ct), 2).reshape(x.shape)


@vjp("MaxUnpool")
def max_unpool(ct: Expr, y: Expr, x: Expr, indices: Expr, output_shape: Expr | None = None) -> tuple[Expr, None, None]:
    """Indices count through the output, output_shape or not, as in ONNX Runtime."""
    return op.Gather(op.Reshape(ct, [-1]), indices, axis=0), None, None


@vjp("AveragePool")
def average_pool(
    ct: Expr,
    y: Expr,
    x: Expr,
    *,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Expr:
    windows = _windows(x, kernel_shape, auto_pad, pads, strides, dilations, ceil_mode)
    if all(_is_whole(window, count_include_pad) for window in windows):
        return _spread_planes(ct, x, windows, kernel_shape, 1 / np.prod(kernel_shape))
    counts = [_count(window, count_include_pad, x.builder) for window in windows]
    for axis, count in enumerate(counts):
        ct = ct / op.Cast(count.reshape([-1] + [1] * (len(counts) - axis - 1)), to=int(ct.dtype))
    return _spread_planes(ct, x, windows, kernel_shape, 1.0)


def _is_whole(window: Window, count_include_pad: int) -> bool:
    """Whether every place of the window counts all taps."""
    inside = window.slack is None and window.longest_slack is not None
    fits = inside or (window.slack is not None and window.slack >= 0)
    unpadded = isinstance(window.begin, int) and isinstance(window.end, int) and window.begin == window.end == 0
    return fits and (bool(count_include_pad) or unpadded)


def _count(window: Window, count_include_pad: int, builder: Builder) -> Expr:
    """How many taps each place of the window averages over: [count], int64."""
    assert isinstance(window.kernel, int)
    taps = np.arange(window.kernel) * window.dilation
    sizes = (window.begin, window.end, window.signal, window.count)
    if all(isinstance(size, int) for size in sizes):
        begin, end, signal, count = (int(size) for size in sizes if isinstance(size, int))
        places = np.arange(count)[:, None] * window.stride - begin + taps
        inside = places < signal + end if count_include_pad else (places >= 0) & (places < signal)
        return builder.constant(inside.sum(1).astype(np.int64))
    zero, one = builder.constant(0), builder.constant(1)
    last = op.Squeeze(vector([window.count], builder), [0])
    places = op.Range(zero, last, one).unsqueeze([1]) * window.stride - window.begin + builder.constant(taps)
    inside = places < window.signal + window.end if count_include_pad else (places >= 0) & (places < window.signal)
    return op.Cast(inside, to=int(ir.DataType.INT64)).sum([1])


def _windows(
    x: Expr,
    kernel_shape: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    ceil_mode: int,
) -> list[Window]:
    signals: list[Size] = [size_of(x, axis + 2) for axis in range(len(kernel_shape))]
    return sliding(
        signals,
        list(kernel_shape),
        auto_pad=auto_pad,
        pads=pads,
        strides=strides,
        dilations=dilations,
        ceil_mode=ceil_mode,
    )


def _spread_planes(ct: Expr, x: Expr, windows: Sequence[Window], kernel_shape: Sequence[int], weight: float) -> Expr:
    """``weight`` times the sum, for every element of x [N, C, ...], of ``ct`` at the places whose windows reach it."""
    kernel = ct.builder.constant(np.full([1, 1, *kernel_shape], weight), ct.dtype)
    places = vector([-1, 1, *(window.count for window in windows)], ct.builder)
    return spread(op.Reshape(ct, places), kernel, windows, group=1).reshape(x.shape)


@vjp("GlobalAveragePool")
def global_average_pool(ct: Expr, y: Expr, x: Expr) -> Expr:
    return per_element(ct, y, x).expand(x.shape)


@vjp("LpPool")
def lp_pool(
    ct: Expr,
    y: Expr,
    x: Expr,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    p: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Expr:
    windows = _windows(x, kernel_shape, auto_pad, pads, strides, dilations, ceil_mode)
    return _spread_planes(_over_norm(ct, y, p), x, windows, kernel_shape, 1.0) * _signed_power(x, p)


@vjp("GlobalLpPool")
def global_lp_pool(ct: Expr, y: Expr, x: Expr, *, p: int) -> Expr:
    return _over_norm(ct, y, p) * _signed_power(x, p)


def _over_norm(ct: Expr, y: Expr, p: int) -> Expr:
    """``ct * y ** (1 - p)``, 0 where y is 0."""
    if p == 1:
        return ct
    norm = nonzero_norm(y)
    return ct / (norm if p == 2 else norm ** float(p - 1))


def _signed_power(x: Expr, p: int) -> Expr:
    """``sign(x) * abs(x) ** (p - 1)``."""
    if p == 1:
        return op.Sign(x)
    return x if p == 2 else op.Sign(x) * op.Abs(x) ** float(p - 1)
