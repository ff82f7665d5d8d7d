"""Det: the cotangent times the cofactors, which are determinants of minors: right for singular matrices as well.

An [n, n] matrix has n^2 minors: O(n^4) elements and O(n^5) operations. A determinant that is used in practice is small.
"""

from __future__ import annotations

import numpy as np

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import ascending

_LARGEST = 64  # 64^2 minors in float32: 65 MB


@vjp("Det")
def det(ct: Expr, y: Expr, x: Expr) -> Expr:
    n = x.dims[-1] if x.dims[-1] is not None else x.dims[-2]
    if n is not None and n > _LARGEST:
        raise UnsupportedOp(
            "",
            f"the derivative of a {n} x {n} determinant, expected at most {_LARGEST} x {_LARGEST}",
            "Compute the determinant from a factorisation.",
        )
    ct = ct.unsqueeze([-2, -1])
    if n == 1:
        return ct.expand(x.shape)
    return ct * (_cofactors_2(x) if n == 2 else _cofactors(x, n))


def _cofactors_2(x: Expr) -> Expr:
    """The cofactors of [[a, b], [c, d]]: [[d, -c], [-b, a]], which is x turned by half with two signs changed."""
    turned = op.Gather(op.Gather(x, [1, 0], axis=-2), [1, 0], axis=-1)
    return turned * x.builder.constant(np.asarray([[1, -1], [-1, 1]]), x.dtype)


def _cofactors(x: Expr, n: int | None) -> Expr:
    """The determinant, with its sign, of x without row i and column j, for all i, j."""
    kept, signs = _kept(x) if n is None else _known_kept(x, n)
    rows = op.Gather(x, kept, axis=-2)  # [..., i, row, column]
    minors = op.Gather(rows, kept, axis=-1)  # [..., i, row, j, column]
    rank = x.rank
    perm = [*range(rank - 2), rank - 2, rank, rank - 1, rank + 1]
    return op.Det(op.Transpose(minors, perm=perm)) * signs


def _known_kept(x: Expr, n: int) -> tuple[Expr, Expr]:
    """For each index the other n - 1 indices, [n, n - 1], and the signs of the cofactors, [n, n]."""
    index = np.arange(n)
    kept = np.asarray([np.delete(index, i) for i in range(n)])
    signs = np.where((index[:, None] + index) % 2, -1, 1)
    return x.builder.constant(kept), x.builder.constant(signs, x.dtype)


def _kept(x: Expr) -> tuple[Expr, Expr]:
    """The same for a number of rows that only the run knows."""
    index = ascending(x.dim(-1).squeeze([0]))
    column = index.unsqueeze([1])
    short = ascending(op.Sub(x.dim(-1).squeeze([0]), 1))
    kept = op.Add(short, (short >= column).cast(short.dtype))
    odd = op.Mod(op.Add(index, column), 2)
    signs = where(op.Equal(odd, 0), x.builder.constant(1, x.dtype), x.builder.constant(-1, x.dtype))
    return kept, signs
