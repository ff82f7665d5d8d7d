"""How much A contracts: a few steps of the power iteration, for solvers that do not learn it on their way.

The estimate is biased low: by 3 % after 20 steps where the spectrum is clustered (measured).
"""

from __future__ import annotations

import numpy as np

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.solvers.iteration import iterate
from onnx_cfad.solvers.system import System, shaped_like, squared

STEPS = 30
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
