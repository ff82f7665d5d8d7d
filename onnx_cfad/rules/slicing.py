"""Slice: the cotangent padded with zeros to the shape that was sliced.

Bounds, axes and steps may be computed, and dimensions unknown. With steps of 1 that is one Pad, whose widths are
computed for all axes at once. Other constant steps spread the cotangent first, steps of at least the length of an axis
like one of that length: tf2onnx takes one element by a step of 10^9. Computed steps, and long ones along an axis of
unknown length, leave the slicing to Slice itself, applied to the numbers of the elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op
from onnx_cfad.rules.padding import pad_along
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import ascending, shaped, unpicked

_BEYOND = 2**31 - 1  # a bound that exporters write for "to the end"
_FAR = 2**62
_LONGEST_SPREAD = 64  # zeros that may be put behind an element of an axis of unknown length


@dataclasses.dataclass(frozen=True)
class _Bounds:
    """Where a Slice with constant steps starts, one entry an axis that it names."""

    starts: Expr
    axes: Expr
    steps: np.ndarray


@vjp("Slice")
def slice_(
    ct: Expr, y: Expr, x: Expr, starts: Expr, ends: Expr, axes: Expr | None = None, steps: Expr | None = None
) -> Callable[[], Expr]:
    return lambda: _unsliced(ct, x, starts, ends, axes, steps)


def _unsliced(ct: Expr, x: Expr, starts: Expr, ends: Expr, axes: Expr | None, steps: Expr | None) -> Expr:
    strides = np.ones(1, np.int64) if steps is None else _shortened(steps.const, x, axes)
    if strides is not None and _is_flip(starts, ends, strides):
        return op.Slice(ct, starts, ends, axes, steps)
    if strides is None or (np.any(strides != 1) and not (x.has_rank and (axes is None or axes.const is not None))):
        return unpicked(ct, x, lambda numbers: op.Slice(numbers, starts, ends, axes, steps))
    named = _axes(starts, axes, None if steps is None else strides.size)
    bounds = _Bounds(_within_reach(starts), named, strides)
    if np.any(strides < 0):
        ct = _flipped(ct, bounds)
    widths = _widths(ct, x, bounds)
    if np.any(np.abs(strides) != 1):
        ct = _spread(ct, x, bounds)
    return pad_along(ct, widths, bounds.axes)


def _shortened(steps: np.ndarray | None, x: Expr, axes: Expr | None) -> np.ndarray | None:
    """Constant steps, none longer than its axis, which take the same elements; None where that is not certain."""
    if steps is None:
        return None
    steps = steps.astype(np.int64)  # the bounds may be of int32, dimensions are not
    if np.all(np.abs(steps) == 1):
        return steps
    named = np.arange(steps.size) if axes is None else axes.const
    dims = [None] * steps.size if named is None or not x.has_rank else [x.dims[int(axis)] for axis in named]
    if any(dim is None and abs(int(step)) > _LONGEST_SPREAD for step, dim in zip(steps, dims, strict=True)):
        return None
    longest = [abs(int(step)) if dim is None else max(dim, 1) for step, dim in zip(steps, dims, strict=True)]
    return np.sign(steps) * np.minimum(np.abs(steps), longest)


def _is_flip(starts: Expr, ends: Expr, strides: np.ndarray) -> bool:
    """Whether every axis that the Slice names is reversed as a whole."""
    if np.any(strides != -1) or starts.const is None or ends.const is None:
        return False
    return bool(np.all((starts.const == -1) | (starts.const >= _BEYOND)) and np.all(ends.const <= -_BEYOND))


def _within_reach(starts: Expr) -> Expr:
    """Starts to which a dimension may be added: no constant is beyond half of what int64 holds."""
    known = starts.const
    if known is None or np.all(np.abs(known // 2) <= _FAR // 2):
        return starts
    return starts.builder.constant(np.clip(known, -_FAR, _FAR))


def _axes(starts: Expr, axes: Expr | None, count: int | None) -> Expr:
    """The axes as int64; the ``count`` leading ones where the Slice names none."""
    if axes is not None:
        known = axes.const
        return axes.cast(ir.DataType.INT64) if known is None else starts.builder.constant(known.astype(np.int64))
    if count is None:
        count = starts.dims[0] if starts.has_rank else None
    if count is None:
        return ascending(starts.size)
    return starts.builder.constant(np.arange(count, dtype=np.int64))


def _flipped(ct: Expr, bounds: _Bounds) -> Expr:
    """``ct`` reversed along the axes of negative steps, so that it runs in the order of the sliced tensor."""
    axes = bounds.axes.const
    assert axes is not None
    backwards = [int(axis) for axis, step in zip(axes, bounds.steps, strict=True) if step < 0]
    n = len(backwards)
    return shaped(op.Slice(ct, [-1] * n, [-_FAR] * n, backwards, [-1] * n), ct)


def _spread(ct: Expr, x: Expr, bounds: _Bounds) -> Expr:
    """``ct`` with |step| - 1 zeros after every element along each axis."""
    axes = bounds.axes.const
    assert axes is not None
    factors = np.ones(ct.rank, np.int64)
    factors[axes] = np.abs(bounds.steps)
    spread = [int(axis) for axis in np.flatnonzero(factors > 1)]
    inserted = [axis + 1 + position for position, axis in enumerate(spread)]
    zeros = [0] * len(spread) + [int(factors[axis]) - 1 for axis in spread]
    shape = op.Shape(ct) if None in x.dims else ct.shape
    target = op.Mul(shape, factors) if shape.const is None else ct.builder.constant(shape.const * factors)
    return pad_along(_inserted(ct, inserted), zeros, inserted).reshape(target)


def _inserted(x: Expr, axes: list[int]) -> Expr:
    """``x`` with axes of length 1, and the number of axes that it has then."""
    longer = x.unsqueeze(axes)
    longer.value.shape = ir.Shape([None] * (x.rank + len(axes)))
    return longer


def _widths(ct: Expr, x: Expr, bounds: _Bounds) -> Expr:
    """How many zeros go before and after the spread cotangent, per axis; negative where spreading gave too many."""
    whole = _dims_along(x, bounds.axes)
    count = op.Gather(op.Shape(ct), bounds.axes, axis=0) if whole.const is None else _dims_along(ct, bounds.axes)
    if bounds.starts.const is not None and whole.const is not None and count.const is not None:
        return _known_widths(bounds, whole.const, count.const, x)
    starts = _counted_from_front(bounds, whole)
    span = count
    if np.any(bounds.steps != 1):
        steps = bounds.steps
        span = op.Mul(count, np.abs(steps))
        first = op.Min(op.Max(op.Add(starts, op.Mul(op.Sub(count, 1), steps)), 0), whole)
        starts = op.Where(steps < 0, first, starts)
    return concat([starts, op.Sub(op.Sub(whole, starts), span)])


def _dims_along(x: Expr, axes: Expr) -> Expr:
    """The dimensions of ``x`` along ``axes`` as an int64 vector; a constant where they are known."""
    if axes.const is not None and x.has_rank:
        dims = [x.dims[int(axis)] for axis in axes.const]
        if None not in dims:
            return x.builder.constant(np.asarray(dims, np.int64))
    return op.Gather(x.shape, axes, axis=0)


def _known_widths(bounds: _Bounds, whole: np.ndarray, count: np.ndarray, x: Expr) -> Expr:
    starts = bounds.starts.const
    assert starts is not None
    steps = bounds.steps
    starts = np.where(starts < 0, starts + whole, starts)
    starts = np.clip(starts, 0, np.where(steps < 0, whole - 1, whole))
    starts = np.where(steps < 0, np.clip(starts + (count - 1) * steps, 0, whole), starts)
    return x.builder.constant(np.concatenate([starts, whole - starts - count * np.abs(steps)]).astype(np.int64))


def _counted_from_front(bounds: _Bounds, whole: Expr) -> Expr:
    """The starts as Slice takes them: negative ones count from the end, and all are clamped into the axis."""
    starts, known = bounds.starts.cast(ir.DataType.INT64), bounds.starts.const
    if known is not None and np.all(known == 0):
        return starts
    if known is None or np.any(known < 0):
        starts = op.Max(op.Where(starts < 0, starts + whole, starts), 0)
    last = op.Sub(whole, (bounds.steps < 0).astype(np.int64)) if np.any(bounds.steps < 0) else whole
    return op.Min(starts, last)
