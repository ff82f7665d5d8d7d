"""The fixed-point solver: u = b + A b + A A b + ...

Other names: Neumann series, Picard iteration of u = b + A u. It converges where the spectral radius of A is below 1, at
the rate of that radius. The terms shrink without end, so there is no rounding floor to stagnate at; their ratio is a
power iteration, which tells the contraction without further work.

Cost of an iteration: A once for each of its terms, and about 20 operations on scalars. Four terms are summed in an
iteration where a term takes few operations, so that the test costs little.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import iterate
from onnx_cfad.solvers.system import Solution, System, shaped_like, squared

MAX_ITERATIONS = 4000

_TERMS = 4  # in an iteration
_FEW = 32  # operations of a term, up to which there are several in an iteration
_DIVERGED = 1e8  # of the squared norm of b: a term that has grown so much will not shrink


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long the series is summed.

    Attributes:
        first: Terms that are summed in any case.
        left: Terms that may be left after those, by the contraction so far; with more, the series is given up.
    """

    first: int
    left: int


@dataclasses.dataclass(frozen=True)
class Series:
    """What was summed, of the scaled system.

    Attributes:
        sums: The sum of each unknown's terms.
        terms: The last term of each.
        solution: What it makes of the system.
    """

    sums: list[Expr]
    terms: list[Expr]
    solution: Solution


def solve(system: System, going: Expr, max_iterations: int = 0) -> Solution:
    """Sums the series until what is left of it, estimated as a geometric one, is within the tolerance.

    Args:
        system: The system.
        going: Solve at all (bool scalar); otherwise the result is not solved.
        max_iterations: Terms at most; 0 for 4,000.
    """
    return summed(system, going, max_iterations).solution


def summed(system: System, going: Expr, max_iterations: int = 0, patience: Patience | None = None) -> Series:
    """As ``solve``; it stops unsolved where ``patience`` ends."""
    builder, count = going.builder, len(system.rhs)
    first, most = squared(system.rhs), max_iterations or MAX_ITERATIONS

    def step(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        terms, sums = carries[:count], carries[count : 2 * count]
        size, ratio, _, _, trips = carries[2 * count :]
        new, added = terms, sums
        done = 0
        while done == 0 or (done < _TERMS and len(inner.nodes) <= _FEW * done):
            new = system.apply(inner, new)
            added = [shaped_like(s + t, s) for s, t in zip(added, new, strict=True)]
            done += 1
        now = squared(new)
        shrunk = now / op.Max(size, float(np.finfo(system.dtype.numpy()).tiny))
        rate = op.Pow(shrunk, 0.5 / done) if done > 1 else op.Sqrt(shrunk)
        rho = op.Max(rate, ratio)  # of two iterations: a pair of complex eigenvalues makes it swing
        left, whole = op.Sqrt(now) * rho, op.Sqrt(squared(added))
        allowed = system.tol * ((1 - rho) * whole)
        solved = op.LessOrEqual(left, allowed)
        bounded = op.LessOrEqual(now, _DIVERGED * inner.expr(first.value))
        error = left / op.Max((1 - rho) * whole, float(np.finfo(system.dtype.numpy()).tiny))
        terms_so_far = op.Add(trips, done)
        again = op.And(op.And(op.Not(solved), bounded), op.Less(terms_so_far, most))
        if patience is not None:
            soon = op.LessOrEqual(left * op.Pow(rho, float(patience.left)), allowed)
            again = op.And(again, op.Or(soon, op.Less(terms_so_far, patience.first)))
        return again, [*new, *added, now, rate, solved, error, terms_so_far]

    zero, false = builder.constant(0, system.dtype), builder.constant(False)
    start = [*system.rhs, *system.rhs, first, zero, false, zero, builder.constant(np.int64(0))]
    results = iterate(most, going, step, start, name="neumann")
    terms, sums = results[:count], results[count : 2 * count]
    _, ratio, solved, error, trips = results[2 * count :]
    return Series(sums, terms, Solution(system.unscaled(sums), solved, trips, error, ratio))
