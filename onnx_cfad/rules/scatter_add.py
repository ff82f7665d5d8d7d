"""Cotangents added into the places that values were read from.

ScatterElements does the adding: ONNX Runtime 1.32 adds the rows of a ScatterND with several threads and loses updates
where two of them meet. It has no kernel that adds in 16 bits either, so those sums are made in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, full, op, zeros_like

_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def ascending(count: Expr) -> Expr:
    """The numbers 0, 1, ..., ``count`` - 1 as an int64 vector."""
    return op.Range(0, count, 1)


def element_numbers(x: Expr) -> Expr:
    """The number of every element of ``x``, in row-major order and in the shape of ``x``."""
    return ascending(x.size).reshape(x.shape)


def shaped(result: Expr, like: Expr) -> Expr:
    """``result``, known to have the shape of ``like``."""
    if result.value.shape is None:
        result.value.shape = like.value.shape
    return result


def scatter_add(total: Expr | None, x: Expr, indices: Expr, ct: Expr, axis: int, *, distinct: bool = False) -> Expr:
    """``total`` plus ``ct`` at the elements that ``GatherElements(x, indices, axis=axis)`` reads.

    Args:
        total: A cotangent of ``x`` (its element type is kept), or None for zero.
        x: The tensor that was read; only its shape is used.
        indices: Shaped like ``ct``.
        ct: What to add.
        axis: The axis that the indices count along.
        distinct: No element is read twice.
    """
    if ct.has_rank and 0 in ct.dims:  # ONNX Runtime 1.32 removes an Expand of the indices to no elements
        return zeros_like(x) if total is None else total
    if total is None and distinct:
        return shaped(op.ScatterElements(zeros_like(x), indices, ct, axis=axis), x)
    dtype = _summed_in(ct if total is None else total)
    base = full(x.shape, 0, dtype, x.builder, like=x) if total is None else total.cast(dtype)
    result = op.ScatterElements(base, indices, ct.cast(dtype), axis=axis, reduction="add")
    return shaped(result.cast(ct.dtype if total is None else total.dtype), x)


def _summed_in(x: Expr) -> ir.DataType:
    return ir.DataType.FLOAT if x.dtype in _SIXTEEN_BIT else x.dtype


def unpicked(ct: Expr, x: Expr, pick: Callable[[Expr], Expr], *, total: Expr | None = None) -> Expr:
    """The cotangent of ``x`` where ``y = pick(x)`` copies elements of ``x``, each any number of times.

    ``pick`` is applied to the numbers of the elements, so neither the rank of ``x`` nor what decides the picking need
    be known. Costs a tensor of int64 numbers in the shape of ``x``.

    Args:
        ct: The cotangent of ``y``.
        x: The tensor; only its shape is used.
        pick: The primal operation.
        total: A cotangent of ``x`` to add to (its element type is kept), or None for zero.
    """
    numbers = op.Reshape(pick(element_numbers(x)), [-1])
    return flat_scatter_add(total, x, numbers, ct)


def flat_scatter_add(total: Expr | None, x: Expr, numbers: Expr, ct: Expr) -> Expr:
    """``total`` plus ``ct`` at the elements of ``x`` with the given row-major ``numbers`` (int64, one an element)."""
    dtype = _summed_in(ct if total is None else total)
    size = x.size.reshape([1])
    base = full(size, 0, dtype, x.builder) if total is None else total.cast(dtype).reshape(size)
    flat = op.ScatterElements(base, numbers, ct.cast(dtype).reshape([-1]), axis=0, reduction="add")
    return shaped(flat.cast(ct.dtype if total is None else total.dtype).reshape(x.shape), x)
