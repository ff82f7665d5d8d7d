"""Which solver: by name, or the automatic choice.

The fixed-point solver is the fastest where the map contracts: a step of it is one product and a few scalars, and it
learns the contraction on its way (measured: docs/implicit.md). Where it has not converged after ``PATIENCE`` terms,
GMRES takes over. In float64 BiCGStab has a try after ``QUICK`` terms already, which takes a tenth of the products where
the contraction is slow; in float32 its residual drifts from the true one by more than an error of 1e-5 allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, cond, op
from onnx_cfad.solvers import anderson, bicgstab, gmres, neumann
from onnx_cfad.solvers.contraction import STEPS, contraction
from onnx_cfad.solvers.system import Solution, System

SOLVERS = ("auto", "neumann", "anderson", "gmres", "bicgstab")
PATIENCE = 4000
"""Terms of the fixed-point solver before GMRES takes over."""

QUICK = 64
"""Terms of the fixed-point solver before BiCGStab has a try, in float64."""

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
    """The fixed-point solver for a while; in float64 then BiCGStab; where that fails, patience."""
    if system.dtype != ir.DataType.DOUBLE:
        return _patient(system, going, max_iterations)
    first = neumann.solve(system, going, min(max_iterations or QUICK, QUICK))

    def tried(builder: Builder) -> Solution:
        second = bicgstab.solve(system, builder.constant(True), max_iterations)
        return _continued(second, op.Not(second.solved), lambda inner: _patient(system, inner, max_iterations))

    return _continued(first, _is_slow(first, going), lambda inner: tried(inner.builder))


def _patient(system: System, going: Expr, max_iterations: int) -> Solution:
    """The fixed-point solver, then GMRES where it was slow (and did not diverge)."""
    first = neumann.solve(system, going, min(max_iterations or PATIENCE, PATIENCE))
    return _continued(first, _is_slow(first, going), lambda inner: gmres.solve(system, inner, max_iterations))


def _is_slow(found: Solution, going: Expr) -> Expr:
    assert found.contraction is not None
    return op.And(op.Not(found.solved), op.And(going, op.Less(found.contraction, 1)))


def _continued(first: Solution, slow: Expr, other: Callable[[Expr], Solution]) -> Solution:
    """``first``, or what ``other`` (told to go on in its scope) finds where that was slow."""
    results = cond(
        slow,
        lambda builder: _parts(other(builder.constant(True))),
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
