"""The fixed-point solver: u = b + A b + A A b + ...

Other names: Neumann series, Picard iteration of u = b + A u. It converges where the spectral radius of A is below 1, at
the rate of that radius. The terms shrink without end, so there is no rounding floor to stagnate at; their ratio is a
power iteration, which tells the contraction without further work.

Cost of an iteration: A once, and about 20 operations on scalars.
"""

from __future__ import annotations

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import iterate
from onnx_cfad.solvers.system import Solution, System, shaped_like, squared

MAX_ITERATIONS = 2000

_DIVERGED = 1e8  # of the squared norm of b: a term that has grown so much will not shrink


def solve(system: System, going: Expr, max_iterations: int = 0) -> Solution:
    """Sums the series until what is left of it, estimated as a geometric one, is within the tolerance.

    Args:
        system: The system.
        going: Solve at all (bool scalar); otherwise the result is not solved.
        max_iterations: Terms at most; 0 for 2,000.
    """
    builder, count = going.builder, len(system.rhs)
    first = squared(system.rhs)

    def step(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        terms, sums = carries[:count], carries[count : 2 * count]
        size, ratio, _, _, trips = carries[2 * count :]
        new = system.apply(inner, terms)
        added = [shaped_like(s + t, s) for s, t in zip(sums, new, strict=True)]
        now = squared(new)
        rate = op.Sqrt(now / op.Max(size, float(np.finfo(system.dtype.numpy()).tiny)))
        rho = op.Max(rate, ratio)  # of two iterations: a pair of complex eigenvalues makes it swing
        left, whole = op.Sqrt(now) * rho, op.Sqrt(squared(added))
        solved = op.LessOrEqual(left, system.tol * ((1 - rho) * whole))
        bounded = op.LessOrEqual(now, _DIVERGED * inner.expr(first.value))
        error = left / op.Max((1 - rho) * whole, float(np.finfo(system.dtype.numpy()).tiny))
        results = [*new, *added, now, rate, solved, error, op.Add(trips, 1)]
        return op.And(op.Not(solved), bounded), results

    zero, false = builder.constant(0, system.dtype), builder.constant(False)
    start = [*system.rhs, *system.rhs, first, zero, false, zero, builder.constant(np.int64(0))]
    results = iterate(max_iterations or MAX_ITERATIONS, going, step, start, name="neumann")
    sums = results[count : 2 * count]
    _, ratio, solved, error, trips = results[2 * count :]
    return Solution(system.unscaled(sums), solved, trips, error, ratio)
