"""Matrix products, and the triangle of a matrix.

A product of matrices gives Gemms with transposed operands: they never build a transposed weight, and a loop can
contract them over all its iterations. Leading axes that only the left side has are rows of one larger matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import sum_to
from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.rules.registry import nondifferentiable, vjp

Lazy = Callable[[], Expr]

nondifferentiable("MatMulInteger", "QLinearMatMul", reason="integers carry no derivative")


@vjp("MatMul")
def mat_mul(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Lazy, Lazy]:
    if b.rank == 2 and not (a.has_rank and a.rank == 1):
        return lambda: _by_left(ct, a, b), lambda: _by_right(ct, a, b)  # whatever rank a has
    if a.rank == 1 and b.rank == 1:
        return lambda: ct * b, lambda: ct * a
    if a.rank == 1:
        row, ct = _with_axis(a, 0), ct.unsqueeze([-2])
        return lambda: _by_left(ct, row, b).squeeze([0]), lambda: _by_right(ct, row, b)
    if b.rank == 1:
        column, ct = _with_axis(b, 1), ct.unsqueeze([-1])
        return lambda: _by_left(ct, a, column), lambda: _by_right(ct, a, column).squeeze([1])
    return lambda: _by_left(ct, a, b), lambda: _by_right(ct, a, b)


def _with_axis(x: Expr, axis: int) -> Expr:
    """The vector ``x`` as a matrix of one row (axis 0) or one column (axis 1)."""
    matrix = x.unsqueeze([axis])
    assert x.value.shape is not None
    dims = [*x.value.shape.dims]
    dims.insert(axis, 1)
    matrix.value.shape = ir.Shape(dims)
    return matrix


def _by_left(ct: Expr, a: Expr, b: Expr) -> Expr:
    """The product ct @ transpose(b), summed over the batch axes that a lacks."""
    if b.rank > 2:
        return _summed(op.MatMul(ct, b.mT), a, b)
    turned = _untransposed(b)
    if a.has_rank and a.rank == 2:
        return op.Gemm(ct, b, transB=1) if turned is None else op.Gemm(ct, turned)
    if turned is not None:
        return op.MatMul(ct, turned)
    return op.Gemm(op.Flatten(ct, axis=-1), b, transB=1).reshape(a.shape)


def _untransposed(b: Expr) -> Expr | None:
    """The matrix that ``b`` is the transpose of: exporters transpose the weights that they multiply by."""
    node = b.value.producer()
    if node is None or node.op_type != "Transpose" or node.inputs[0] is None:
        return None
    turned = b.mT
    return turned if turned.value is node.inputs[0] else None


def _by_right(ct: Expr, a: Expr, b: Expr) -> Expr:
    """The product transpose(a) @ ct, summed over the batch axes that b lacks."""
    if b.rank > 2:
        return _summed(op.MatMul(a.mT, ct), b, a)
    if a.has_rank and a.rank == 2:
        return op.Gemm(a, ct, transA=1)
    return op.Gemm(op.Flatten(a, axis=-1), op.Flatten(ct, axis=-1), transA=1)


def _summed(product: Expr, operand: Expr, other: Expr) -> Expr:
    """``product``, a matrix of ``operand`` for each index of the joint batch, summed to the batch of ``operand``."""
    own, others = operand.value.shape, other.value.shape
    assert own is not None
    assert others is not None
    whole = ir.Value(shape=ir.Shape([*_joint_batch([*own.dims[:-2]], [*others.dims[:-2]]), *own.dims[-2:]]))
    return sum_to(product, whole, operand)


def _joint_batch(own: list[ir.SymbolicDim | int], others: list[ir.SymbolicDim | int]) -> list[ir.SymbolicDim | int]:
    """The batch dimensions of the product; an unknown one where either side may be the one that is repeated."""
    rank = max(len(own), len(others))
    left, right = ([1] * (rank - len(dims)) + dims for dims in (own, others))
    return [_joint(a, b) for a, b in zip(left, right, strict=True)]


def _joint(a: ir.SymbolicDim | int, b: ir.SymbolicDim | int) -> ir.SymbolicDim | int:
    if b in (a, 1) or (isinstance(a, int) and a != 1):
        return a
    return b if a == 1 else ir.SymbolicDim(None)


@vjp("Gemm")
def gemm(
    ct: Expr,
    y: Expr,
    a: Expr,
    b: Expr,
    c: Expr | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> tuple[Lazy, Lazy, Lazy]:
    def by_a() -> Expr:
        if transA:
            return op.Gemm(b, ct, alpha=alpha, transA=transB, transB=1)
        return op.Gemm(ct, b, alpha=alpha, transB=1 - transB)

    def by_b() -> Expr:
        if transB:
            return op.Gemm(ct, a, alpha=alpha, transA=1, transB=transA)
        return op.Gemm(a, ct, alpha=alpha, transA=1 - transA)

    def by_c() -> Expr:
        assert c is not None
        return sum_to(ct if beta == 1 else ct * beta, y.value, c)

    return by_a, by_b, by_c


@vjp("Trilu")
def trilu(ct: Expr, y: Expr, x: Expr, k: Expr | None = None, *, upper: int) -> tuple[Expr, None]:
    return op.Trilu(ct, k, upper=upper), None
