"""Running sums and products along an axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Builder, Expr, concat, full, op
from onnx_cfad.adjoint.subgraph_operators import scan
from onnx_cfad.rules.padding import pad_along
from onnx_cfad.rules.registry import vjp


@vjp("CumSum")
def cum_sum(ct: Expr, y: Expr, x: Expr, axis: Expr, *, exclusive: int, reverse: int) -> tuple[Expr, None]:
    total = op.CumSum(wide(ct), axis, exclusive=exclusive, reverse=1 - reverse)
    return total.cast(ct.dtype), None


@vjp("CumProd")
def cum_prod(ct: Expr, y: Expr, x: Expr, axis: Expr, *, exclusive: int, reverse: int) -> tuple[Expr, None]:
    """The product before element k times s_k = ct_k + x_{k+1} s_{k+1}: no division, so that zeros are no exception."""
    if axis.const is None:
        shape, middle = _around(x, axis), x.builder.constant(np.asarray(1))
        ct_3d, x_3d = op.Reshape(ct, shape), op.Reshape(x, shape)
        for each in (ct_3d, x_3d):
            each.value.shape = ir.Shape([None] * 3)
        found, _ = cum_prod(ct_3d, y, x_3d, middle, exclusive=exclusive, reverse=reverse)
        return op.Reshape(found, op.Shape(x)), None
    along = int(axis.const.reshape(-1)[0]) % x.rank
    if exclusive:
        ct = _next(ct, along, reverse)
    before = op.CumProd(x, axis, exclusive=1, reverse=reverse)
    return before * _accumulated(ct, _next(x, along, reverse), x, along, reverse), None


def _around(x: Expr, axis: Expr) -> Expr:
    """The shape of ``x`` with the axes before and those behind a computed ``axis`` taken together: [3]."""
    dims = op.Shape(x)
    place = op.Mod(op.Reshape(axis, [-1]).cast(ir.DataType.INT64), op.Shape(dims))
    following = op.Add(place, 1)
    before = op.ReduceProd(op.Slice(dims, [0], place, [0]), keepdims=1)
    behind = op.ReduceProd(op.Slice(dims, following, [2**31 - 1], [0]), keepdims=1)
    shape = concat([before, op.Gather(dims, place), behind])
    shape.value.shape = ir.Shape([3])
    return shape


def _next(x: Expr, axis: int, reverse: int) -> Expr:
    """For each element the one that follows in the order of the product, 0 for the last."""
    if reverse:
        return pad_along(op.Slice(x, [0], [-1], [axis]), [1, 0], [axis])
    return pad_along(op.Slice(x, [1], [2**62], [axis]), [0, 1], [axis])


def _accumulated(ct: Expr, following: Expr, x: Expr, axis: int, reverse: int) -> Expr:
    """s_k = ct_k + following_k * s_{k+1}, from the last element of the product to the first."""
    ct, following = wide(ct), following.cast(wide(ct).dtype)
    perm = [axis, *(a for a in range(x.rank) if a != axis)]
    back = [perm.index(a) for a in range(x.rank)]
    terms, factors = (op.Transpose(each, perm=perm) for each in (ct, following))
    others = [x.dim(a) for a in perm[1:]]
    shape = concat(others) if others else x.builder.constant(np.zeros(0, np.int64))
    start = full(shape, 0, ct.dtype, x.builder)

    def step(builder: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        total = slices[0] + slices[1] * carries[0]
        return [total], [total]

    _, (totals,) = scan(step, [start], [terms, factors], reverse=not reverse)
    return op.Transpose(totals, perm=back).cast(x.dtype)
