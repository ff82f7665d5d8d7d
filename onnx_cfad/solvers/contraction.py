"""How much A contracts: a few steps of the power iteration, for solvers that do not learn it on their way; what stays.

The estimate is biased low: by 3 % after 20 steps where the spectrum is clustered (measured).
"""

from __future__ import annotations

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import iterate
from onnx_cfad.solvers.system import System, shaped_like, squared

STEPS = 30
_LEAST = 1000  # products that a vector has to die out: a loop that started at its result ran for few
_MEAN = 20  # of them, the last ones: a complex pair of eigenvalues makes single steps swing


def contraction(system: System, going: Expr) -> Expr:
    """The spectral radius of A on the Krylov space of b, estimated (scalar): the mean growth of the last steps."""
    builder, count = going.builder, len(system.rhs)
    tiny = float(np.finfo(system.dtype.numpy()).tiny)

    def step(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        vectors, (steps, growth) = carries[:count], carries[count:]
        moved = system.apply(inner, vectors)
        length = op.Max(op.Sqrt(squared(moved)), tiny)
        late = op.GreaterOrEqual(steps, STEPS - _MEAN)
        units = [shaped_like(x / length, y) for x, y in zip(moved, vectors, strict=True)]
        more = op.Where(late, growth + op.Log(length), growth)
        return inner.constant(True), [*units, op.Add(steps, 1), more]

    size = op.Max(op.Sqrt(squared(system.rhs)), tiny)
    units = [shaped_like(x / size, x) for x in system.rhs]
    carries = [*units, builder.constant(np.int64(0)), builder.constant(0, system.dtype)]
    growth = iterate(STEPS, going, step, carries, name="contraction")[-1]
    return op.Exp(growth / _MEAN)


def dies_out(system: System, going: Expr, steps: Expr) -> Expr:
    """Whether A takes b to a part of sqrt(eps) of it in ``steps`` products, or in 1,000 where these are less (bool).

    Where A keeps something of b, it does not, however little of b that is: an estimate of its radius may be below 1.
    """
    builder, count = going.builder, len(system.rhs)
    tiny = float(np.finfo(system.dtype.numpy()).tiny)
    size = op.Max(op.Sqrt(squared(system.rhs)), tiny)
    bound = size * float(np.sqrt(system.eps))
    most = op.Max(steps, _LEAST)

    def step(inner: Builder, carries: list[Expr]) -> tuple[Expr, list[Expr]]:
        moved = [shaped_like(x, y) for x, y in zip(system.apply(inner, carries[:count]), carries, strict=False)]
        length, taken = op.Sqrt(squared(moved)), op.Add(carries[-1], 1)
        left = op.Greater(length, inner.expr(bound.value))
        return op.And(left, op.Less(taken, inner.expr(most.value))), [*moved, length, taken]

    carries = [*system.rhs, size, builder.constant(np.int64(0))]
    length = iterate(2**31 - 1, going, step, carries, name="dies_out")[-2]
    return op.LessOrEqual(length, bound)
