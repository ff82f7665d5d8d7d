"""Operators that read elements by index: the cotangent is added at the places that were read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, Update, concat, op, where, zeros_like
from onnx_cfad.rules.outputs import handed_out
from onnx_cfad.rules.registry import Cotangent, nondifferentiable, vjp
from onnx_cfad.rules.scatter_add import flat_scatter_add, scatter_add, shaped, unpicked

_INT64 = ir.DataType.INT64

nondifferentiable("NonMaxSuppression", reason="its output is the indices of boxes")


@vjp("Gather")
def gather(ct: Expr, y: Expr, x: Expr, indices: Expr, *, axis: int) -> tuple[Cotangent, None]:
    return _gathered(ct, x, indices, axis), None


def _gathered(ct: Expr, x: Expr, indices: Expr, axis: int, *, distinct: bool = False) -> Update:
    """The cotangent of ``x`` where slices along ``axis`` were read at ``indices``."""
    if not x.has_rank or not indices.has_rank:
        return Update(
            lambda total: unpicked(ct, x, lambda numbers: op.Gather(numbers, indices, axis=axis), total=total)
        )
    axis %= x.rank
    if axis == 0 and all(dim == 1 for dim in indices.dims):
        return Update(lambda total: _with_one(total, x, indices.cast(_INT64).unsqueeze([-1]), ct))
    return Update(lambda total: _with_slices(total, x, indices, ct, axis, distinct=distinct))


def _with_one(total: Expr | None, x: Expr, place: Expr, ct: Expr) -> Expr:
    """``total`` plus ``ct`` in the one slice of ``x`` that ``GatherND(x, place)`` reads."""
    if total is None:
        return shaped(op.ScatterND(zeros_like(x), place, ct), x)
    return shaped(op.ScatterND(total, place, op.GatherND(total, place) + ct.cast(total.dtype)), x)


def _with_slices(total: Expr | None, x: Expr, indices: Expr, ct: Expr, axis: int, *, distinct: bool = False) -> Expr:
    """``total`` plus the slices of ``ct`` at ``indices`` (of any rank) along ``axis``."""
    if indices.rank != 1:
        before, after = _dims(ct, 0, axis), _dims(ct, axis + indices.rank, None)
        ct = ct.reshape(concat([before, indices.size.reshape([1]), after]))
    places = (
        op.Reshape(indices, [-1, *[1] * (x.rank - 1 - axis)]) if axis < x.rank - 1 or indices.rank != 1 else indices
    )
    return scatter_add(total, x, op.Expand(places, ct.shape), ct, axis, distinct=distinct)


def _dims(x: Expr, start: int, end: int | None) -> Expr:
    """Some dimensions of ``x`` as an int64 vector."""
    dims = x.dims[start:end] if x.has_rank else (None,)
    if None not in dims:
        return x.builder.constant(np.asarray(dims, np.int64))
    return op.Shape(x, start=start, end=end)


@vjp("GatherElements")
def gather_elements(ct: Expr, y: Expr, x: Expr, indices: Expr, *, axis: int) -> tuple[Cotangent, None]:
    return Update(lambda total: scatter_add(total, x, indices, ct, axis)), None


@vjp("GatherND")
def gather_nd(ct: Expr, y: Expr, x: Expr, indices: Expr, *, batch_dims: int) -> tuple[Cotangent, None]:
    if batch_dims == 0 and indices.has_rank and all(dim == 1 for dim in indices.dims[:-1]):
        return Update(lambda total: _with_one(total, x, indices, ct)), None

    def pick(numbers: Expr) -> Expr:
        return op.GatherND(numbers, indices, batch_dims=batch_dims)

    return Update(lambda total: unpicked(ct, x, pick, total=total)), None


@vjp("Compress")
def compress(ct: Expr, y: Expr, x: Expr, condition: Expr, *, axis: int | None) -> tuple[Cotangent, None]:
    chosen = op.Squeeze(op.NonZero(condition), [0])
    chosen.value.shape = ir.Shape([None])
    return _chosen(ct, x, chosen, axis), None


def _chosen(ct: Expr, x: Expr, indices: Expr, axis: int | None) -> Update:
    """The cotangent of ``x`` where different slices (or elements, without an axis) were read at ``indices`` [n]."""
    if axis is None:
        return Update(lambda total: flat_scatter_add(total, x, indices, ct))
    return _gathered(ct, x, indices, axis, distinct=True)


@vjp("TopK")
def top_k(ct: tuple[Expr | None, ...], y: tuple[Expr, ...], x: Expr, k: Expr, *, axis: int) -> tuple[Cotangent, None]:
    values = ct[0]
    if values is None:
        return None, None
    indices = handed_out(y, 1, _INT64, y[0].value.shape)
    return Update(lambda total: scatter_add(total, x, indices, values, axis, distinct=True)), None


@vjp("Unique")
def unique(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    *,
    axis: int | None,
) -> Cotangent:
    """The cotangent goes to the first of equal elements."""
    values = ct[0] if isinstance(ct, tuple) else ct
    if values is None:
        return None
    first = handed_out(y, 1, _INT64, ir.Shape([None]))
    return _chosen(values, x, first, axis)


@vjp("OneHot")
def one_hot(ct: Expr, y: Expr, indices: Expr, depth: Expr, values: Expr, *, axis: int) -> tuple[Cotangent, ...]:
    def by_values() -> Expr:
        hot = op.OneHot(indices.cast(_INT64), depth.cast(_INT64), [0, 1], axis=axis) > 0
        off, on = wide(where(hot, 0, ct)).sum(), wide(where(hot, ct, 0)).sum()
        return concat([off.unsqueeze([0]), on.unsqueeze([0])]).cast(values.dtype)

    return None, None, by_values
