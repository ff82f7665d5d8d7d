"""Correlation of a signal with a kernel, and its two adjoints, each as one Conv or ConvTranspose.

``y[n, m, i] = sum over c, k of w[m, c, k] * x[n, c, i * stride + k * dilation - begin]`` for each group of channels.
The adjoint by x spreads y over the signal; the adjoint by w is a correlation of the signal with y in which batch and
channels, and stride and dilation, change places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op
from onnx_cfad.rules.tap_convolution import applies, tap_convolution
from onnx_cfad.rules.tap_products import pays_off, tap_products
from onnx_cfad.rules.windows import Size, Window, aligned, crop, size_of, unless_ones, vector


def spread(y: Expr, w: Expr, windows: Sequence[Window], *, group: int) -> Expr:
    """The adjoint of the correlation by its signal: y [N, M, ...], w [M, C / group, ...] to [N, C, signal...].

    One ConvTranspose. Where only the run knows how much of the signal the last place leaves over, the result is made
    too long and cropped.
    """
    pads: list[tuple[int, int]] = []
    surplus: list[int] = []
    cropped: dict[int, Size] = {}  # axis to the first element that is kept
    for axis, window in enumerate(windows):
        begin = window.begin if isinstance(window.begin, int) else 0
        if window.slack is not None and isinstance(window.end, int) and begin == window.begin:
            trailing = window.slack - window.end
            pads.append((begin, max(-trailing, 0)))
            surplus.append(max(trailing, 0))
        else:
            pads.append((begin, 0))
            surplus.append(window.stride - 1 if window.longest_slack is None else window.longest_slack)
            cropped[axis] = 0 if begin == window.begin else window.begin
    padding = [begin for begin, _ in pads] + [end for _, end in pads]
    attributes = {
        "strides": unless_ones(window.stride for window in windows),
        "dilations": unless_ones(window.dilation for window in windows),
        "pads": padding if any(padding) else None,
        "output_padding": surplus if any(surplus) else None,
    }
    result = _conv_transpose(y, w, group, attributes)
    return crop(result, {axis: (start, windows[axis].signal) for axis, start in cropped.items()})


def _conv_transpose(y: Expr, w: Expr, group: int, attributes: Mapping[str, Any]) -> Expr:
    """ConvTranspose in ``group`` groups.

    A node for each group in float64: only the reference evaluator has a float64 kernel, and onnx 1.23 takes the
    wrong rows of a grouped weight there.
    """
    if group == 1 or y.dtype != ir.DataType.DOUBLE:
        return op.ConvTranspose(y, w, group=None if group == 1 else group, **attributes)
    ys = op.Split(y, axis=1, num_outputs=group, outputs=group)
    ws = op.Split(w, axis=0, num_outputs=group, outputs=group)
    parts = [op.ConvTranspose(a, b, **attributes) for a, b in zip(ys, ws, strict=True)]
    return concat(parts, axis=1)


def correlate(x: Expr, w: Expr, windows: Sequence[Window], *, group: int) -> Expr:
    """The correlation itself, with exactly ``count`` places: x [N, C, signal...], w [M, C / group, ...]."""
    x, pads, excess = aligned(x, windows)
    strides = [window.stride for window in windows]
    dilations = unless_ones(window.dilation for window in windows)
    y = op.Conv(x, w, strides=unless_ones(strides), dilations=dilations, pads=pads, group=group)
    longer = [axis for axis, more in enumerate(excess) if more is None or more >= strides[axis]]
    return crop(y, {axis: (0, windows[axis].count) for axis in longer})


def correlate_taps(x: Expr, y: Expr, windows: Sequence[Window], *, group: int) -> Expr:
    """The adjoint of the correlation by its kernel: x [N, C, signal...], y [N, M, count...] to [M, C / group, taps...].

    One Conv whose places are taps and channels where that can be, else products tap by tap where these are faster, else
    one Conv over the batch, with y as the kernel: strides are the dilations of the correlation and the other way round.
    """
    if applies(x, y, windows, group):
        return tap_convolution(x, y, windows)
    if pays_off(x, y, windows, group):
        return tap_products(x, y, windows, group=group)
    x, pads, excess = aligned(x, windows)
    axes = _axes(windows)
    dilations = [window.dilation for window in windows]
    taps = op.Conv(
        _groups_to_batch(x, len(windows), group),
        op.Transpose(y, perm=[1, 0, *axes]),
        strides=dilations,
        dilations=[window.stride for window in windows],
        pads=pads,
        group=group,
    )
    longer = [axis for axis, more in enumerate(excess) if more is None or more >= dilations[axis]]
    return crop(op.Transpose(taps, perm=[1, 0, *axes]), {axis: (0, windows[axis].kernel) for axis in longer})


def _axes(windows: Sequence[Window]) -> list[int]:
    return list(range(2, 2 + len(windows)))


def _groups_to_batch(x: Expr, rank: int, group: int) -> Expr:
    """[N, group * c, ...] to [c, group * N, ...]."""
    axes = list(range(2, 2 + rank))
    if group == 1:
        return op.Transpose(x, perm=[1, 0, *axes])
    channels = size_of(x, 1)
    if channels == group:
        return op.Reshape(op.Transpose(x, perm=[1, 0, *axes]), [1, -1, *([0] * rank)])
    batch, *spatial = [size_of(x, axis) for axis in (0, *axes)]
    each = channels // group if isinstance(channels, int) else channels / group
    parts = x.reshape(vector([batch, group, each, *spatial], x.builder))
    swapped = op.Transpose(parts, perm=[2, 1, 0, *(axis + 1 for axis in axes)])
    return op.Reshape(swapped, vector([each, -1, *spatial], x.builder))
