"""Reductions over axes given, computed, empty or absent: the cotangent is stretched over what was reduced.

With noop_with_empty_axes and no axes a reduction acts elementwise; every formula here holds for that too. Ties of
ReduceMax and ReduceMin share the cotangent evenly, as in torch.amax. ReduceL2 at the zero vector: 0, as in torch.norm.
ReduceLogSumExp of nothing but -inf: 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.rules.registry import jvp, nondifferentiable, vjp

nondifferentiable("ArgMax", "ArgMin", reason="an index is piecewise constant")


@dataclasses.dataclass(frozen=True)
class _Reduced:
    """How a node reduces ``x`` to ``y``.

    Attributes:
        x: What is reduced.
        axes: The node's axes; None where it has none.
        keepdims: Reduced axes stay, with length 1.
        noop: No axes means elementwise, not all axes.
    """

    x: Expr
    axes: Expr | None
    keepdims: int
    noop: int

    def aligned(self, reduced: Expr) -> Expr:
        """``reduced``, of the output's shape, with length 1 in place of the axes reduced: it broadcasts to ``x``.

        Without axes it is a scalar (or elementwise), which broadcasts as it is, also where axes turn out empty.
        """
        if self.keepdims or self.axes is None or (self.axes.const is not None and not self.axes.const.size):
            return reduced
        return op.Unsqueeze(reduced, self.axes)

    def stretched(self, reduced: Expr) -> Expr:
        """``reduced``, of the output's shape, repeated over the axes reduced."""
        return self.aligned(reduced).expand(self.x.shape)

    def sum(self, terms: Expr) -> Expr:
        """The sum of ``terms``, shaped like ``x``, over the same axes, which stay with length 1."""
        return op.ReduceSum(wide(terms), self.axes, keepdims=1, noop_with_empty_axes=self.noop).cast(terms.dtype)


@vjp("ReduceSum")
def reduce_sum(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).stretched(ct)


@vjp("ReduceMean")
def reduce_mean(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).stretched(per_element(ct, y, x))


def per_element(ct: Expr, y: Expr, x: Expr) -> Expr:
    """The cotangent of a mean by how many elements each mean is of."""
    before, after = x.size, y.size
    if before.const is not None and after.const is not None:
        return ct * (int(after.const) / max(int(before.const), 1))
    # Not the quotient of the integers: their division by 0 would end the process.
    wider = ir.DataType.DOUBLE if ct.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return ct * (after.cast(wider) / before.cast(wider)).cast(ct.dtype)


@vjp("ReduceMax", "ReduceMin")
def reduce_extreme(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    reduced = _Reduced(x, axes, keepdims, noop_with_empty_axes)
    chosen = op.Equal(x, reduced.aligned(y))
    count = reduced.sum(chosen.cast(wide_type(ct))).cast(ct.dtype)
    return where(chosen, reduced.aligned(ct) / count, 0)


@jvp("ReduceMax", "ReduceMin")
def tangent_of_extreme(
    tangents: tuple[Expr | None, ...],
    y: Expr,
    x: Expr,
    axes: Expr | None = None,
    *,
    keepdims: int,
    noop_with_empty_axes: int,
) -> Expr:
    """The mean of the tangents of the elements that tie; that of an extreme of nothing is 0."""
    t = tangents[0]
    assert t is not None
    reduced = _Reduced(x, axes, keepdims, noop_with_empty_axes)
    chosen = op.Equal(x, reduced.aligned(y))
    count = op.Max(reduced.sum(chosen.cast(wide_type(t))), 1).cast(t.dtype)
    mean = reduced.sum(where(chosen, t, 0)) / count
    return mean if keepdims else mean.reshape(y.shape)


def wide_type(x: Expr) -> ir.DataType:
    """The type to count in: float32 for 16-bit types, which cannot count beyond 2048 (bfloat16: 256)."""
    return ir.DataType.FLOAT if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else x.dtype


@vjp("ReduceProd")
def reduce_prod(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    reduced = _Reduced(x, axes, keepdims, noop_with_empty_axes)
    return reduced.aligned(ct) * _product_of_others(reduced)


def _product_of_others(reduced: _Reduced) -> Expr:
    """For each element the product of the others, right for any number of zeros, as its first derivative is.

    It is the product of the other nonzero elements times the product of the other zeros. Of the latter the number
    of other zeros decides: none gives 1; one gives that zero itself, as the sum of the zeros less the own one, which
    is 0 and has a derivative; two or more give 0, also as derivative.
    """
    x = reduced.x
    is_zero = op.Equal(x, 0)
    nonzero = where(is_zero, 1, x)
    zeros = where(is_zero, x, 0)
    flags = is_zero.cast(wide_type(x))
    others = reduced.sum(flags) - flags
    zero_product = where(op.Equal(others, 0), 1, where(op.Equal(others, 1), reduced.sum(zeros) - zeros, 0))
    product = op.ReduceProd(nonzero, reduced.axes, keepdims=1, noop_with_empty_axes=reduced.noop)
    return product / nonzero * zero_product


@vjp("ReduceL1")
def reduce_l1(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).aligned(ct) * op.Sign(x)


@vjp("ReduceL2")
def reduce_l2(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).aligned(ct / nonzero_norm(y)) * x


def nonzero_norm(norm: Expr) -> Expr:
    """``norm``, or infinity where it is 0: dividing by it gives 0 there."""
    return where(op.Equal(norm, 0), np.inf, norm)


@vjp("ReduceSumSquare")
def reduce_sum_square(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).aligned(ct + ct) * x


@vjp("ReduceLogSum")
def reduce_log_sum(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    return _Reduced(x, axes, keepdims, noop_with_empty_axes).stretched(ct * op.Exp(-y))


@vjp("ReduceLogSumExp")
def reduce_log_sum_exp(
    ct: Expr, y: Expr, x: Expr, axes: Expr | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Expr:
    reduced = _Reduced(x, axes, keepdims, noop_with_empty_axes)
    total = reduced.aligned(where(op.Equal(y, -np.inf), 0, y))
    return reduced.aligned(ct) * op.Exp(x - total)
