"""Which solver: by name, or the automatic choice.

Measured (``benchmarks/adjoint_solvers.py``): where the map contracts fast, nothing beats the fixed-point solver, a step
of which is one product and a few scalars, and which learns the contraction on its way. Where it contracts slowly,
BiCGStab takes a tenth of the products; its own work, about 50 operations an iteration, weighs more the smaller the
state is. So the series is summed first; where the contraction that it showed says that many more terms are needed,
BiCGStab goes on from its sum, and where that fails, the series is summed to its end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.adjoint.subgraph_operators import cond
from onnx_cfad.solvers import anderson, bicgstab, gmres, neumann
from onnx_cfad.solvers.contraction import STEPS, contraction
from onnx_cfad.solvers.neumann import Patience
from onnx_cfad.solvers.system import Solution, System, shaped_like

SOLVERS = ("auto", "neumann", "anderson", "gmres", "bicgstab")
FIRST = 32
"""Terms of the series that are summed in any case: fewer would not tell the contraction."""

_LEFT = {  # terms that BiCGStab is worth, for states of at least so many elements
    ir.DataType.FLOAT: {0: 128, 1024: 64},
    ir.DataType.DOUBLE: {0: 128, 1024: 48},
}
_KRYLOV = {"anderson": anderson.solve, "gmres": gmres.solve, "bicgstab": bicgstab.solve}


def patience(dtype: ir.DataType, elements: int | None) -> Patience:
    """How long the automatic choice sums the series.

    Args:
        dtype: What the system is solved in.
        elements: Of the state; None where it is not known, which counts as many.
    """
    rows = _LEFT.get(dtype, _LEFT[ir.DataType.FLOAT])
    size = math.inf if elements is None else elements
    return Patience(FIRST, rows[max(least for least in rows if least <= size)])


def described(allowed: Patience) -> str:
    """What the automatic choice does, in words."""
    return f"adjoint by the series, or BiCGStab where more than {allowed.left} terms would be left"


def elements_of(shapes: Iterable[ir.Shape | None]) -> int | None:
    """The number of elements of a state; None where a dimension is not known."""
    total = 0
    for shape in shapes:
        if shape is None or not shape.is_static():
            return None
        total += math.prod(d for d in shape.dims if isinstance(d, int))
    return total


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
    """The series while little is left of it, then BiCGStab from its sum; where that fails, the whole series."""
    allowed = patience(system.dtype, elements_of(x.value.shape for x in system.rhs))
    series = neumann.summed(system, going, max_iterations, allowed)

    def onward(builder: Builder) -> Solution:
        rate = series.solution.contraction
        assert rate is not None
        terms, sums = ([builder.expr(x.value) for x in values] for values in (series.terms, series.sums))
        # The residual of the sum is the term after its last; as a difference it would have the sum's rounding errors.
        rest = [shaped_like(x, y) for x, y in zip(system.apply(builder, terms), sums, strict=True)]
        start = bicgstab.Start(sums, rest, rate)
        second = bicgstab.solve(system, builder.constant(True), max_iterations, start=start)
        return _continued(second, op.Not(second.solved), lambda inner: neumann.solve(system, inner, max_iterations))

    return _continued(series.solution, _is_slow(series.solution, going), lambda inner: onward(inner.builder))


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
