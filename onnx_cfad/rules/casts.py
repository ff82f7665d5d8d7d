"""Operators that pass values on in another element type, dropped out, or quantised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import sum_to, wide
from onnx_cfad.adjoint.expr import Expr, concat, op, where
from onnx_cfad.graph.straight_through import carries_estimate
from onnx_cfad.rules.outputs import handed_out
from onnx_cfad.rules.padding import pad_along
from onnx_cfad.rules.reductions import wide_type
from onnx_cfad.rules.registry import nondifferentiable, vjp

nondifferentiable("QuantizeLinear", reason="rounding to integers is piecewise constant")
nondifferentiable("BitCast", reason="the bits of a number are no function with a derivative")


@vjp("Cast", elementwise=True)
def cast(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct.cast(x.dtype)


@vjp("CastLike", elementwise=True)
def cast_like(ct: Expr, y: Expr, x: Expr, target_type: Expr) -> tuple[Expr, None]:
    return ct.cast(x.dtype), None


@vjp("Dropout")
def dropout(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    ratio: Expr | None = None,
    training_mode: Expr | None = None,
) -> Expr | None:
    """In training the cotangent is dropped by the mask of the same draw; the ratio decides a draw: no derivative."""
    data = ct[0] if isinstance(ct, tuple) else ct
    training = np.asarray(False) if training_mode is None else training_mode.const
    if data is None or (training is not None and not training.reshape(-1)[0]):
        return data
    assert training_mode is not None
    scale = _dropout_scale(data, ratio)
    if training is None:
        scale = where(training_mode, scale, 1)
    mask = handed_out(y, 1, ir.DataType.BOOL, data.value.shape)
    return where(mask, data * scale, 0)


def _dropout_scale(ct: Expr, ratio: Expr | None) -> Expr:
    """1 / (1 - ratio), what the kept elements are multiplied with."""
    known = np.asarray(0.5) if ratio is None else ratio.const
    if known is not None:
        return ct.builder.constant(1 / (1 - float(known.reshape(-1)[0])), ct.dtype)
    assert ratio is not None
    return (1 / (1 - ratio)).cast(ct.dtype)


@vjp("DynamicQuantizeLinear")
def dynamic_quantize_linear(ct: tuple[Expr | None, ...], y: tuple[Expr, ...], x: Expr) -> Expr | None:
    """The scale is how far the elements and 0 spread, by 255; the other outputs are integers."""
    return None if ct[1] is None else ct[1] / 255 * (_share_of_extreme(x, 1) - _share_of_extreme(x, -1))


def _share_of_extreme(x: Expr, sign: int) -> Expr:
    """The derivative of max(x, 0), or min(x, 0) for ``sign`` -1: ties share it evenly, and 0 has no share."""
    extreme = op.ReduceMax(x, keepdims=0) if sign > 0 else op.ReduceMin(x, keepdims=0)
    chosen = op.And(op.Equal(x, extreme), x > 0 if sign > 0 else x < 0).cast(x.dtype)
    return chosen / op.Max(chosen.sum(), 1)


@vjp("DequantizeLinear")
def dequantize_linear(
    ct: Expr, y: Expr, x: Expr, x_scale: Expr, x_zero_point: Expr | None = None, *, axis: int, block_size: int | None
) -> tuple[Callable[[], Expr] | None, Callable[[], Expr]]:
    def by_scale() -> Expr:
        kind = wide_type(ct)  # a 16-bit type does not hold every integer
        zero = None if x_zero_point is None else along_axis(x_zero_point.cast(kind), x, axis, block_size or 0)
        steps = x.cast(kind) if zero is None else x.cast(kind) - zero
        return sum_along_axis(ct.cast(kind) * steps, y, x_scale, axis, block_size or 0).cast(x_scale.dtype)

    # Only what a straight-through estimator quantised gets a cotangent: integers carry none.
    by_x = (
        (lambda: ct * along_axis(x_scale.cast(ct.dtype), x, axis, block_size or 0))
        if carries_estimate(x.value)
        else None
    )
    return by_x, by_scale


def along_axis(scale: Expr, x: Expr, axis: int, block_size: int) -> Expr:
    """``scale`` (one number, one an index of ``axis``, or one a block along it) so that it broadcasts to ``x``."""
    if scale.rank == 0:
        return scale
    axis %= x.rank
    if not block_size:
        inner = [1] * (x.rank - 1 - axis)
        view = scale.reshape([-1, *inner])
        view.value.shape = ir.Shape([*scale.dims, *inner])
        return view
    blocks = _blocks(scale, axis, block_size)
    return op.Slice(blocks.reshape(_merged(scale, axis, block_size)), [0], x.dim(axis), [axis])


def _blocks(scale: Expr, axis: int, block_size: int) -> Expr:
    """[.., B, ..] to [.., B, block_size, ..]."""
    return op.Tile(scale.unsqueeze([axis + 1]), [block_size if a == axis + 1 else 1 for a in range(scale.rank + 1)])


def _merged(scale: Expr, axis: int, block_size: int) -> Expr:
    """The shape [.., B * block_size, ..]."""
    return op.Mul(scale.shape, [block_size if a == axis else 1 for a in range(scale.rank)])


def sum_along_axis(steps: Expr, y: Expr, scale: Expr, axis: int, block_size: int) -> Expr:
    """The sum of ``steps`` (shaped like ``y``) over the elements that share a number of ``scale``."""
    if not block_size:
        return sum_to(steps, y.value, along_axis(scale, y, axis, 0)).reshape(scale.shape)
    axis %= y.rank
    short = op.Sub(op.Gather(_merged(scale, axis, block_size), [axis], axis=0), y.dim(axis))
    whole = pad_along(wide(steps), concat([scale.builder.constant(np.zeros(1, np.int64)), short]), [axis])
    return whole.reshape(op.Shape(_blocks(scale, axis, block_size))).sum([axis + 1])
