"""BiCGStab: two products with A an iteration, and no history.

H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992). Memory O(n) for n unknowns. Its residual is not monotone:
the best iterate is kept. A breakdown (a denominator of zero) ends it at the best iterate so far.
"""

from __future__ import annotations

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import Best, iterate
from onnx_cfad.solvers.system import Flat, Solution, System, norm, quotient

MAX_ITERATIONS = 1000
_PATIENCE = 30  # iterations without progress: the rounding floor, or a breakdown


def solve(system: System, going: Expr, max_iterations: int = 0) -> Solution:
    """Iterates until the residual is at the rounding floor.

    Args:
        system: The system.
        going: Solve at all (bool scalar).
        max_iterations: Products with A at most; 0 for 1,000.
    """
    builder = going.builder
    flat = Flat(system, builder)
    residual = flat.residual(flat.rhs)

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
        floor = op.LessOrEqual(best.error, 2 * system.eps * norm(best.vector))
        broken = op.Or(op.Equal(new_rho, 0), op.IsNaN(new_rho))
        again = op.And(op.Less(best.since, _PATIENCE), op.Not(op.Or(floor, broken)))
        return again, [moved, left, onward, new_rho, op.Add(products, 2), *best.carries()]

    best = Best(flat.rhs, norm(residual), builder.constant(np.int64(0)))
    carries = [flat.rhs, residual, residual, _dot(residual, residual), builder.constant(np.int64(1)), *best.carries()]
    limit = max(1, (max_iterations or MAX_ITERATIONS) // 2)
    results = iterate(limit, going, step, carries, name="bicgstab")
    vector = results[5]
    error = quotient(norm(flat.residual(vector)), norm(vector))  # the true one: the recurrence drifts from it
    solved = op.And(going, op.LessOrEqual(error, system.tol))
    return Solution(system.unscaled(flat.unpack(vector)), solved, op.Add(results[4], 1), error)


def _dot(a: Expr, b: Expr) -> Expr:
    return op.ReduceSum(a * b, keepdims=0)
