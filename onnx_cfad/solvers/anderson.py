"""Anderson's acceleration of u = b + A u: the combination of the last m steps whose residual is least.

D. G. Anderson, Iterative procedures for nonlinear integral equations, J. ACM 12 (1965); H. F. Walker and P. Ni, SIAM J.
Numer. Anal. 49 (2011): on a linear system it does what GMRES does, with one product an iteration and no restart.

Memory O(m n) for n unknowns, copied in every iteration.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.solvers.iteration import Best, iterate
from onnx_cfad.solvers.least_squares import least_squares
from onnx_cfad.solvers.system import Flat, Solution, System, norm, quotient

MAX_ITERATIONS = 1000
DEPTH = 5
_PATIENCE = 20  # iterations without progress: the rounding floor


def solve(system: System, going: Expr, max_iterations: int = 0, *, depth: int = DEPTH) -> Solution:
    """Iterates until the residual is at the rounding floor.

    Args:
        system: The system.
        going: Solve at all (bool scalar).
        max_iterations: Products with A at most; 0 for 1,000.
        depth: Steps that are combined.
    """
    builder = going.builder
    flat = Flat(system, builder)
    first = flat.residual(flat.rhs)  # the step from b to b + A b
    rows = ir.Shape([depth + 1, None])

    def repeated(vector: Expr) -> Expr:
        whole = concat([vector.unsqueeze([0])] * (depth + 1), axis=0)
        whole.value.shape = rows
        return whole

    def step(_: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        points, steps, products = carries[:3]
        best = Best(*carries[3:])
        last, onward = _last(points, depth), _last(steps, depth)
        turns, moves = differences(steps, depth), differences(points, depth)
        gram = op.MatMul(turns, op.Transpose(turns, perm=[1, 0]))
        right = op.MatMul(turns, onward.unsqueeze([1])).squeeze([1])
        weights = least_squares(gram, right, depth, depth).unsqueeze([0])
        new = last + onward - op.MatMul(weights, moves + turns).squeeze([0])
        new.value.shape = last.value.shape
        error = flat.residual(new)
        best = best.updated(new, norm(error))
        floor = op.LessOrEqual(best.error, 2 * system.eps * norm(new))
        again = op.And(op.Less(best.since, _PATIENCE), op.Not(floor))
        histories = [shifted(points, new, depth), shifted(steps, error, depth)]
        return again, [*histories, op.Add(products, 1), *best.carries()]

    start = Best(flat.rhs, norm(first), builder.constant(np.int64(0)))
    carries = [repeated(flat.rhs), repeated(first), builder.constant(np.int64(1)), *start.carries()]
    results = iterate(max_iterations or MAX_ITERATIONS, going, step, carries, name="anderson")
    products, vector, size = results[2:5]
    error = quotient(size, norm(vector))
    solved = op.And(going, op.LessOrEqual(error, system.tol))
    return Solution(system.unscaled(flat.unpack(vector)), solved, products, error)


def _last(history: Expr, depth: int) -> Expr:
    return op.Gather(history, history.builder.constant(np.int64(depth)), axis=0)


def differences(history: Expr, depth: int) -> Expr:
    """Each row of a history less the row before it: [depth, n]."""
    return op.Slice(history, [1], [depth + 1], [0]) - op.Slice(history, [0], [depth], [0])


def shifted(history: Expr, new: Expr, depth: int) -> Expr:
    """A history with a new last row, without its first."""
    result = concat([op.Slice(history, [1], [depth + 1], [0]), new.unsqueeze([0])], axis=0)
    result.value.shape = history.value.shape
    return result
