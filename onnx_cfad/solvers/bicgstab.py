"""BiCGStab: two products with A an iteration, and no history.

H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992). Memory O(n) for n unknowns. Its residual is not monotone:
the best iterate is kept. A breakdown (a denominator of zero) ends it at the best iterate so far.

The residual that it updates drifts from the true one by the rounding errors of its first, large steps, which the system
amplifies by 1 / (1 - contraction): a float32 system is solved with products of float64 where they can be had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import Best, iterate
from onnx_cfad.solvers.system import Flat, Solution, System, norm, quotient

MAX_ITERATIONS = 1000
_SAFE = 0.1  # of the tolerance: the contraction is estimated from below
_PATIENCE = 30  # iterations without progress: the rounding floor, or a breakdown


@dataclasses.dataclass(frozen=True)
class Start:
    """An initial guess for the scaled system.

    Attributes:
        values: The guess.
        residual: b - (I - A) u of it, which its maker may know with fewer rounding errors than their difference has.
        contraction: The factor by which A shrinks a vector (scalar), which tells the error from the residual.
    """

    values: Sequence[Expr]
    residual: Sequence[Expr]
    contraction: Expr


def solve(system: System, going: Expr, max_iterations: int = 0, *, start: Start | None = None) -> Solution:
    """Iterates until the residual is at the rounding floor.

    Args:
        system: The system.
        going: Solve at all (bool scalar).
        max_iterations: Products with A at most; 0 for 1,000.
        start: An initial guess; default: b.
    """
    builder, least, kind = going.builder, 2 * system.eps, system.dtype
    system = system.widened(builder)
    flat = Flat(system, builder)
    if start is None:
        guess, enough = flat.rhs, builder.constant(least, system.dtype)
        residual = flat.residual(guess)
    else:
        guess, residual = (_packed(flat, values, builder) for values in (start.values, start.residual))
        rate = builder.expr(start.contraction.value).cast(system.dtype)
        enough = op.Max(_SAFE * system.tol * (1 - rate), 2 * system.eps)

    def operator(vector: Expr) -> Expr:
        return vector - flat.apply(vector)

    def step(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        vector, rest, direction, rho, products = carries[:5]
        best, shadow = Best(*carries[5:]), inner.expr(residual.value)
        along = operator(direction)
        alpha = quotient(rho, _dot(shadow, along))
        half = rest - alpha * along
        turned = operator(half)
        omega = quotient(_dot(turned, half), _dot(turned, turned))
        moved = vector + alpha * direction + omega * half
        left = half - omega * turned
        new_rho = _dot(shadow, left)
        beta = quotient(new_rho, rho) * quotient(alpha, omega)
        onward = left + beta * (direction - omega * along)
        for x in (moved, left, onward):
            x.value.shape = vector.value.shape
        best = best.updated(moved, norm(left))
        floor = op.LessOrEqual(best.error, inner.expr(enough.value) * norm(best.vector))
        broken = op.Or(op.Equal(new_rho, 0), op.IsNaN(new_rho))
        again = op.And(op.Less(best.since, _PATIENCE), op.Not(op.Or(floor, broken)))
        return again, [moved, left, onward, new_rho, op.Add(products, 2), *best.carries()]

    best = Best(guess, norm(residual), builder.constant(np.int64(0)))
    carries = [guess, residual, residual, _dot(residual, residual), builder.constant(np.int64(1)), *best.carries()]
    limit = max(1, (max_iterations or MAX_ITERATIONS) // 2)
    results = iterate(limit, going, step, carries, name="bicgstab")
    vector = results[5]
    true = quotient(norm(flat.residual(vector)), norm(vector))  # the updated one drifts from it
    error = true.cast(kind)
    solved = op.And(going, op.LessOrEqual(error, system.tol))
    return Solution(system.unscaled(flat.unpack(vector)), solved, op.Add(results[4], 1), error)


def _packed(flat: Flat, values: Sequence[Expr], builder: Builder) -> Expr:
    return flat.pack([builder.expr(x.value).cast(flat.rhs.dtype) for x in values])


def _dot(a: Expr, b: Expr) -> Expr:
    return op.ReduceSum(a * b, keepdims=0)
