"""ScatterElements and ScatterND: a tensor with some elements replaced by, or combined with, updates.

With max and min a tie shares the cotangent evenly, as torch.scatter_reduce does. With mul the derivative by an update
is the product of the others, also where one of them is zero; the second derivative at such a zero is not complete.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op, where, zeros_like
from onnx_cfad.rules.registry import Cotangent, vjp
from onnx_cfad.rules.scatter_add import ascending, element_numbers, scatter_add


@vjp("ScatterElements")
def scatter_elements(
    ct: Expr, y: Expr, data: Expr, indices: Expr, updates: Expr, *, axis: int, reduction: str
) -> tuple[Cotangent, ...]:
    if reduction == "none":
        kept = lambda: op.ScatterElements(ct, indices, zeros_like(updates), axis=axis)  # noqa: E731
        return kept, None, lambda: op.GatherElements(ct, indices, axis=axis)
    if reduction == "add":
        return ct, None, lambda: op.GatherElements(ct, indices, axis=axis)
    by_data, by_updates = _combined(ct, y, data, indices, updates, axis, reduction)
    return by_data, None, by_updates


@vjp("ScatterND")
def scatter_nd(ct: Expr, y: Expr, data: Expr, indices: Expr, updates: Expr, *, reduction: str) -> tuple[Cotangent, ...]:
    if reduction == "none":
        kept = lambda: op.ScatterND(ct, indices, zeros_like(updates))  # noqa: E731
        return kept, None, lambda: op.GatherND(ct, indices)
    if reduction == "add":
        return ct, None, lambda: op.GatherND(ct, indices)
    numbers = op.Reshape(op.GatherND(element_numbers(data), indices), [-1])
    flat_ct, flat_y, flat_data, flat_updates = (op.Reshape(x, [-1]) for x in (ct, y, data, updates))
    by_data, by_updates = _combined(flat_ct, flat_y, flat_data, numbers, flat_updates, 0, reduction)
    return lambda: by_data().reshape(data.shape), None, lambda: by_updates().reshape(updates.shape)


def _combined(
    ct: Expr, y: Expr, data: Expr, indices: Expr, updates: Expr, axis: int, reduction: str
) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    """The cotangents of data and updates where an element combines its old value and all its updates."""
    if reduction == "mul":
        return _multiplied(ct, data, indices, updates, axis)
    return _selected(ct, y, data, indices, updates, axis)


def _multiplied(
    ct: Expr, data: Expr, indices: Expr, updates: Expr, axis: int
) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    def by_updates() -> Expr:
        """The cotangent times the old value times the product of the other updates of the same element."""
        zero = op.Equal(updates, 0)
        factors = where(zero, 1, updates)
        product = op.ScatterElements(ct * data, indices, factors, axis=axis, reduction="mul")
        zeros = scatter_add(None, data, indices, zero.cast(ct.dtype), axis)
        product, zeros = (op.GatherElements(x, indices, axis=axis) for x in (product, zeros))
        return where(op.Equal(zeros, zero.cast(ct.dtype)), product / factors, 0)

    return lambda: op.ScatterElements(ct, indices, updates, axis=axis, reduction="mul"), by_updates


def _selected(
    ct: Expr, y: Expr, data: Expr, indices: Expr, updates: Expr, axis: int
) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    kept, hit = op.Equal(data, y), op.Equal(updates, op.GatherElements(y, indices, axis=axis))
    count = scatter_add(kept.cast(ct.dtype), data, indices, hit.cast(ct.dtype), axis)
    share = ct / count
    return lambda: where(kept, share, 0), lambda: where(hit, op.GatherElements(share, indices, axis=axis), 0)


@vjp("TensorScatter")
def tensor_scatter(
    ct: Expr, y: Expr, past_cache: Expr, update: Expr, write_indices: Expr | None = None, *, axis: int, mode: str
) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    def by_past() -> Expr:
        return op.TensorScatter(ct, zeros_like(update), write_indices, axis=axis, mode=mode)

    def by_update() -> Expr:
        places = _written_places(update, write_indices, axis % update.rank)
        if mode == "circular":
            places = op.Mod(places, past_cache.dim(axis))
        return op.GatherElements(ct, op.Expand(places, update.shape), axis=axis)

    return by_past, by_update


def _written_places(update: Expr, write_indices: Expr | None, axis: int) -> Expr:
    """The place along ``axis`` that each row of ``update`` goes to, before wrapping: [B or 1, 1, .., S, .., 1]."""
    rank = update.rank
    steps = ascending(update.dim(axis).reshape([])).reshape([-1 if a == axis else 1 for a in range(rank)])
    if write_indices is None:
        return steps
    return write_indices.cast(ir.DataType.INT64).reshape([-1] + [1] * (rank - 1)) + steps
