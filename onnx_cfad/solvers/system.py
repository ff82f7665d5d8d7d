"""The system (I - A) u = b, its scaling, and what a solver says about its solution.

u and b are lists of tensors (one for each coupled carry, a batch included); A is linear and given by a function that
records it. Sixteen-bit types are solved in float32. The system is scaled so that b has a 1-norm of 1, which keeps
squares in range for any seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op, where

Apply = Callable[[Builder, list[Expr]], list[Expr]]
"""Records A u with a builder, from u to a list of the same shapes and types."""

_TOLERANCE = {ir.DataType.DOUBLE: 1e-12, ir.DataType.FLOAT: 4e-6}
_TOLERANCE_16_BIT = 1e-3


@dataclasses.dataclass(frozen=True)
class System:
    """(I - A) u = b.

    Attributes:
        apply: A, in the types of ``rhs``.
        rhs: b, scaled.
        scale: What b was divided by (scalar).
        dtype: The type it is solved in.
        tol: Relative error that a solution may have.
        types: The element types that the solution is wanted in.
        wide: A of float64, recorded with a builder of an enclosing scope; None where it has no such form.
    """

    apply: Apply
    rhs: tuple[Expr, ...]
    scale: Expr
    dtype: ir.DataType
    tol: float
    types: tuple[ir.DataType, ...]
    wide: Callable[[Builder], Apply] | None = None

    @classmethod
    def of(
        cls,
        apply: Apply,
        rhs: Sequence[Expr],
        tol: float = 0.0,
        wide: Callable[[Builder], Apply] | None = None,
    ) -> System:
        """The system, scaled, in a type that has digits enough.

        Args:
            apply: A, in the types of ``rhs``.
            rhs: b.
            tol: Relative error that a solution may have; 0 for 1e-12 in float64, 4e-6 in float32, 1e-3 in 16 bits.
            wide: Records A of float64, for a float32 system; None where there is no such form.
        """
        types = tuple(x.dtype for x in rhs)
        dtype = ir.DataType.DOUBLE if ir.DataType.DOUBLE in types else ir.DataType.FLOAT
        values = [x.cast(dtype) for x in rhs]
        size = total([op.ReduceL1(x, keepdims=0) for x in values])
        scale = where(op.Greater(size, 0), size, 1)

        def widened(builder: Builder, us: list[Expr]) -> list[Expr]:
            narrow = [u.cast(t) for u, t in zip(us, types, strict=True)]
            return [shaped_like(v.cast(dtype), u) for v, u in zip(apply(builder, narrow), us, strict=True)]

        scaled = tuple(shaped_like(x / scale, x) for x in values)
        tolerance = tol or max(_TOLERANCE.get(t, _TOLERANCE_16_BIT) for t in types)
        return cls(widened, scaled, scale, dtype, tolerance, types, wide)

    def widened(self, builder: Builder) -> System:
        """The system of float64, where A has such a form; else the system itself."""
        if self.wide is None:
            return self
        double = ir.DataType.DOUBLE
        rhs = tuple(shaped_like(builder.expr(x.value).cast(double), x) for x in self.rhs)
        scale = builder.expr(self.scale.value).cast(double)
        return dataclasses.replace(self, apply=self.wide(builder), rhs=rhs, scale=scale, dtype=double, wide=None)

    @property
    def eps(self) -> float:
        """The rounding error of the type it is solved in."""
        return float(np.finfo(self.dtype.numpy()).eps)

    def unscaled(self, us: Sequence[Expr]) -> list[Expr]:
        """A solution of the scaled system as one of the system that was given."""
        return [shaped_like((u * self.scale).cast(t), u) for u, t in zip(us, self.types, strict=True)]


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a solver found.

    Attributes:
        values: u, of the shapes and types of b.
        solved: Whether the stop rule was met (bool scalar).
        iterations: How often A was applied (int64 scalar).
        error: The estimated error of u, relative to u (scalar).
        contraction: The estimated factor by which A shrinks a vector, where the solver learns it; None elsewhere.
    """

    values: list[Expr]
    solved: Expr
    iterations: Expr
    error: Expr
    contraction: Expr | None = None


class Flat:
    """A system whose unknowns are joined to one vector [n], for solvers that take scalar products.

    Args:
        system: The system.
        builder: Records what joins b.
    """

    def __init__(self, system: System, builder: Builder) -> None:
        rhs = [builder.expr(x.value) for x in system.rhs]
        self.system = system
        self.rhs = self.pack(rhs)
        self._shapes = [x.shape for x in rhs]
        self._sizes = concat([x.size.unsqueeze([0]) for x in rhs])

    def pack(self, values: list[Expr]) -> Expr:
        """The vector [n] of all elements."""
        return concat([x.reshape([-1]) for x in values])

    def unpack(self, vector: Expr) -> list[Expr]:
        """The tensors of a vector."""
        builder, shapes = vector.builder, self._shapes
        if len(shapes) == 1:
            parts: Sequence[Expr] = [vector]
        else:
            parts = op.Split(vector, builder.expr(self._sizes.value), axis=0, outputs=len(shapes))
        wholes = [part.reshape(builder.expr(shape.value)) for part, shape in zip(parts, shapes, strict=True)]
        return [shaped_like(x, y) for x, y in zip(wholes, self.system.rhs, strict=True)]

    def apply(self, vector: Expr) -> Expr:
        """A u for a vector."""
        return self.pack(self.system.apply(vector.builder, self.unpack(vector)))

    def residual(self, vector: Expr) -> Expr:
        """b - (I - A) u."""
        return vector.builder.expr(self.rhs.value) - vector + self.apply(vector)


def total(parts: Sequence[Expr]) -> Expr:
    """The sum of scalars."""
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def squared(values: Sequence[Expr]) -> Expr:
    """The squared 2-norm of all values together (scalar)."""
    return total([op.ReduceSumSquare(x, keepdims=0) for x in values])


def norm(vector: Expr) -> Expr:
    """The 2-norm of a vector (scalar)."""
    return op.ReduceL2(vector, keepdims=0)


def quotient(a: Expr, b: Expr) -> Expr:
    """a / b of scalars, 0 where b is 0."""
    zero = op.Equal(b, 0)
    return where(zero, 0, a / where(zero, 1, b))


def shaped_like(x: Expr, like: Expr) -> Expr:
    """``x``, whose shape is known to be that of ``like``."""
    if x.value.shape is None:
        x.value.shape = like.value.shape
    return x
