"""Standardising over axes, the core of every normalisation: less the mean, by the standard deviation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op


@dataclasses.dataclass(frozen=True)
class Standardized:
    """``x`` standardised over ``axes``, in float32 at least.

    Attributes:
        xhat: (x - mean) * inverse, shaped like x.
        inverse: 1 / sqrt(variance + epsilon), with length 1 along ``axes``.
        axes: What mean and variance are over.
    """

    xhat: Expr
    inverse: Expr
    axes: Sequence[int]

    def mean(self, terms: Expr) -> Expr:
        """The mean of ``terms`` over the same axes, which stay with length 1."""
        return op.ReduceMean(terms, list(self.axes), keepdims=1)

    def through(self, ct: Expr, inverse_ct: Expr | None = None) -> Expr:
        """The cotangent of x from that of xhat (and of ``inverse``, divided by the number of elements it is of)."""
        along = self.mean(ct * self.xhat)
        if inverse_ct is not None:
            along = along + self.inverse * inverse_ct
        return self.inverse * (ct - self.mean(ct) - self.xhat * along)

    def through_scale(self, ct: Expr) -> Expr:
        """The cotangent of x from that of xhat where no mean is taken off: xhat = x * inverse."""
        return self.inverse * (ct - self.xhat * self.mean(ct * self.xhat))


def standardize(x: Expr, axes: Sequence[int], epsilon: float) -> Standardized:
    """Standardises ``x`` over ``axes``."""
    x = at_least_float(x)
    centred = x - op.ReduceMean(x, list(axes), keepdims=1)
    return scale_to_one(centred, axes, epsilon)


def scale_to_one(x: Expr, axes: Sequence[int], epsilon: float) -> Standardized:
    """Divides ``x`` by the root of its mean square over ``axes``."""
    x = at_least_float(x)
    square = op.ReduceMean(x * x, list(axes), keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(square + epsilon))
    return Standardized(x * inverse, inverse, axes)


def at_least_float(x: Expr) -> Expr:
    """``x`` in float32 when its type has 16 bits: normalisation is computed so."""
    return x.cast(ir.DataType.FLOAT) if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else x
