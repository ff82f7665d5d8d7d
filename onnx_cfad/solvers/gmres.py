"""GMRES(m): the best approximation in a Krylov subspace of m dimensions, restarted.

Y. Saad and M. H. Schultz, GMRES: a generalized minimal residual algorithm, SIAM J. Sci. Stat. Comput. 7 (1986).
Orthogonalised by Gram and Schmidt twice; the small problem is solved by Householder's QR. It needs no contraction, and
far fewer products with A than the fixed-point solver where A barely contracts; each costs 2 m + 10 vector operations.

Memory O(m n) for n unknowns. Not implemented: preconditioning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op, where
from onnx_cfad.adjoint.subgraph_operators import loop
from onnx_cfad.solvers.iteration import Best, iterate
from onnx_cfad.solvers.least_squares import least_squares
from onnx_cfad.solvers.system import Flat, Solution, System, norm, quotient

MAX_ITERATIONS = 600
RESTART = 20


def solve(
    system: System, going: Expr, max_iterations: int = 0, *, restart: int = RESTART, start: Sequence[Expr] | None = None
) -> Solution:
    """Restarts until the residual is at the rounding floor, which it is when a restart takes less than a fiftieth off.

    Args:
        system: The system.
        going: Solve at all (bool scalar).
        max_iterations: Products with A at most; 0 for 600.
        restart: Dimensions of the subspace.
        start: An initial guess for the scaled system; default: b.
    """
    builder = going.builder
    flat = Flat(system, builder)
    limit = max(1, (max_iterations or MAX_ITERATIONS) // (restart + 1))
    first = flat.pack([builder.expr(x.value) for x in start]) if start is not None else flat.rhs
    residual = flat.residual(first)

    def cycle(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        vector, rest, size, products = carries
        moved = vector + _correction(inner, flat, rest, size, restart)
        moved.value.shape = vector.value.shape
        new = flat.residual(moved)
        length = norm(new)
        better = op.Less(length, size)
        best = Best(vector, size, products).updated(moved, length)
        floor = op.LessOrEqual(length, 2 * system.eps * norm(moved))
        again = op.And(op.Less(length, 0.98 * size), op.Not(floor))
        kept = op.Where(better, new, rest)
        return again, [best.vector, kept, best.error, op.Add(products, restart + 1)]

    carries = [first, residual, norm(residual), builder.constant(np.int64(1))]
    vector, _, size, products = iterate(limit, going, cycle, carries, name="gmres")
    error = quotient(size, norm(vector))
    solved = op.And(going, op.LessOrEqual(error, system.tol))
    return Solution(system.unscaled(flat.unpack(vector)), solved, products, error)


def _correction(inner: Builder, flat: Flat, rest: Expr, size: Expr, restart: int) -> Expr:
    """The vector of the Krylov subspace of ``rest`` that reduces the residual most."""
    rows = restart + 1
    tiny = float(np.finfo(rest.dtype.numpy()).tiny)
    unit = (rest / op.Max(size, tiny)).unsqueeze([0])
    empty = op.Expand(inner.constant(0, rest.dtype), concat([inner.constant([restart]), rest.dim(0)]))
    basis = concat([unit, empty], axis=0)
    positions = inner.constant(np.arange(rows))

    def arnoldi(body: Builder, step: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        (vectors,) = carries
        index = body.expr(positions.value)
        own = op.Gather(vectors, step, axis=0)
        moved = (own - flat.apply(own)).unsqueeze([1])
        whole = op.ReduceL2(moved, keepdims=0)
        across = op.Transpose(vectors, perm=[1, 0])
        parts = op.MatMul(vectors, moved)
        left = moved - op.MatMul(across, parts)
        more = op.MatMul(vectors, left)
        left = left - op.MatMul(across, more)
        length = op.ReduceL2(left, keepdims=0)
        fresh = op.Greater(length, whole * (10 * flat.system.eps))
        added = where(fresh, left / where(fresh, length, 1), 0)
        below = op.Equal(index, op.Add(step, 1))
        column = (parts + more).squeeze([1]) + where(op.And(below, fresh), length, 0)
        row = op.Transpose(added, perm=[1, 0])
        return [where(below.unsqueeze([1]), row, vectors)], [column]

    (vectors,), (columns,) = loop(inner.constant(np.int64(restart)), arnoldi, [basis], name="arnoldi")
    right = inner.constant(np.eye(rows)[0], rest.dtype) * size
    columns.value.shape = ir.Shape([restart, rows])
    weights = least_squares(op.Transpose(columns, perm=[1, 0]), right, rows, restart)
    used = op.Slice(vectors, [0], [restart], [0])
    return op.MatMul(weights.unsqueeze([0]), used).squeeze([0])
