"""Which solver: by name, or the automatic choice.

The fixed-point solver is the fastest where the map contracts: a step of it is one product and a few scalars, and it
learns the contraction on its way (measured: docs/implicit.md). Where it has not converged after ``PATIENCE`` terms,
GMRES goes on from where it stands.
"""

from __future__ import annotations

import dataclasses

from onnx_cfad.adjoint.expr import Expr, cond, op
from onnx_cfad.solvers import anderson, bicgstab, gmres, neumann
from onnx_cfad.solvers.contraction import STEPS, contraction
from onnx_cfad.solvers.system import Solution, System

SOLVERS = ("auto", "neumann", "anderson", "gmres", "bicgstab")
PATIENCE = 4000
"""Terms of the fixed-point solver before GMRES takes over."""

_KRYLOV = {"anderson": anderson.solve, "gmres": gmres.solve, "bicgstab": bicgstab.solve}


def solve(solver: str, system: System, going: Expr, max_iterations: int = 0) -> Solution:
    """Solves ``system``.

    Args:
        solver: One of ``SOLVERS``.
        system: The system.
        going: Solve at all (bool scalar); otherwise the solution is not solved.
        max_iterations: Products with A at most; 0 for the solver's own limit.
    """
    if solver == "auto":
        return _automatic(system, going, max_iterations)
    if solver == "neumann":
        return neumann.solve(system, going, max_iterations)
    found = _KRYLOV[solver](system, going, max_iterations)
    rate = contraction(system, going)
    return dataclasses.replace(found, contraction=rate, iterations=op.Add(found.iterations, STEPS))


def _automatic(system: System, going: Expr, max_iterations: int) -> Solution:
    """The fixed-point solver, then GMRES where it was slow (and did not diverge)."""
    first = neumann.solve(system, going, min(max_iterations or PATIENCE, PATIENCE))
    assert first.contraction is not None
    slow = op.And(op.Not(first.solved), op.And(going, op.Less(first.contraction, 1)))
    results = cond(
        slow,
        lambda builder: _parts(gmres.solve(system, builder.constant(True), max_iterations)),
        lambda builder: [builder.expr(x.value) for x in _parts(first)],
        name="slow",
    )
    *values, solved, iterations, error = results
    for value, known in zip(values, first.values, strict=True):
        value.value.shape = known.value.shape
    total = op.Add(iterations, op.Where(slow, first.iterations, first.iterations.builder.constant(0)))
    return Solution(values, solved, total, error, first.contraction)


def _parts(solution: Solution) -> list[Expr]:
    return [*solution.values, solution.solved, solution.iterations, solution.error]
