"""Small least-squares problems: Householder's QR and back substitution, each a Loop over columns.

ONNX has no Solve and no QR. The problem is regularised at the level of rounding (Tikhonov), so that columns may depend
on each other: a subspace that is exhausted, a history that is not filled yet.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op, where
from onnx_cfad.adjoint.subgraph_operators import loop
from onnx_cfad.solvers.system import quotient

_REGULAR = 4.0  # rounding errors of the largest element


def least_squares(a: Expr, b: Expr, rows: int, columns: int) -> Expr:
    """The y that makes ||a y - b|| least.

    Args:
        a: [rows, columns], rows >= columns.
        b: [rows].
        rows: Number of rows.
        columns: Number of columns.

    Returns:
        y: [columns]. Cost O(rows * columns^2), in 2 * columns iterations of about 15 operations.
    """
    builder, eps = a.builder, np.finfo(a.dtype.numpy())
    least = op.Max(op.ReduceMax(op.Abs(a), keepdims=0) * float(_REGULAR * eps.eps), float(eps.tiny))
    extra = builder.constant(np.eye(columns), a.dtype) * least
    right = concat([b, builder.constant(np.zeros(columns), a.dtype)])
    whole = concat([concat([a, extra], axis=0), right.unsqueeze([1])], axis=1)
    positions = builder.constant(np.arange(rows + columns))

    def eliminate(inner: Builder, column: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        (r,) = carries
        index = inner.expr(positions.value)
        below = where(op.GreaterOrEqual(index, column), op.Gather(r, column, axis=1), 0)
        length = op.ReduceL2(below, keepdims=0)
        pivot = op.Gather(below, column, axis=0)
        signed = where(op.Less(pivot, 0), -length, length)
        mirror = below + where(op.Equal(index, column), signed, 0)
        size = op.ReduceSumSquare(mirror, keepdims=0)
        factor = where(op.Greater(size, 0), 2 / where(op.Greater(size, 0), size, 1), 0)
        row = op.MatMul(mirror.unsqueeze([0]), r)
        return [r - factor * op.MatMul(mirror.unsqueeze([1]), row)], []

    (triangle,), _ = loop(builder.constant(np.int64(columns)), eliminate, [whole], name="eliminate")

    def substitute(inner: Builder, step: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        (y,) = carries
        position = op.Sub(inner.constant(np.int64(columns - 1)), step)
        row = op.Gather(inner.expr(triangle.value), position, axis=0)
        pivot = op.Gather(row, position, axis=0)
        right = op.Gather(row, inner.constant(np.int64(columns)), axis=0)
        known = op.ReduceSum(op.Slice(row, [0], [columns], [0]) * y, keepdims=0)
        value = quotient(right - known, pivot)
        own = op.Equal(inner.constant(np.arange(columns)), position)
        return [where(own, value, y)], []

    zeros = builder.constant(np.zeros(columns), a.dtype)
    (y,), _ = loop(builder.constant(np.int64(columns)), substitute, [zeros], name="substitute")
    y.value.shape = ir.Shape([columns])
    return y
