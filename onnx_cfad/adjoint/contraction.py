"""Weight gradients as one contraction over all iterations instead of a running sum of one product an iteration.

A running sum reads and writes the whole weight every iteration. Where an iteration contributes ``transpose(P) @ Q`` to
a captured matrix, P and Q are stacked and multiplied once after the loop: 2.7 to 4.5 times faster at small batch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op


@dataclasses.dataclass(frozen=True)
class Mask:
    """The iterations that count: those in which ``predicate`` (a boolean scalar) is ``holds``."""

    predicate: ir.Value
    holds: bool


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product of an iteration: ``transpose(left) @ right``, or ``left @ transpose(right)`` when ``columns``.

    Attributes:
        left: [R, K], or [K, R] when ``columns``.
        right: [R, M], or [M, R] when ``columns``.
        columns: The summed axis R is the last one.
        mask: The iterations that count; None for all.
    """

    left: ir.Value
    right: ir.Value
    columns: bool
    mask: Mask | None = None


@dataclasses.dataclass(frozen=True)
class OuterProduct:
    """``factor @ matrix`` (or its transpose): ``factor`` [R, K] of an iteration, ``matrix`` the same in all."""

    factor: ir.Value
    matrix: ir.Value
    transposed: bool


@dataclasses.dataclass(frozen=True)
class Total:
    """A sum of an iteration over ``axes`` of ``operand``; in the iterations of ``mask`` where there is one."""

    operand: ir.Value
    axes: tuple[int, ...]
    keepdims: bool
    mask: Mask | None = None


_Part = TypeVar("_Part", Product, Total)


def product_of(contribution: Expr) -> Product | None:
    """The product that ``contribution`` was recorded as, when it is a contraction of two matrices over their rows."""
    node = contribution.value.producer()
    if node is None or any(v is None for v in node.inputs):
        return None
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type == "MatMul":
        left, right = _transposed(inputs[0]), _transposed(inputs[1])
        if left is not None and _are_alike(left, inputs[1], node.outputs[0]):
            return Product(left, inputs[1], columns=False)
        if right is not None and _are_alike(inputs[0], right, node.outputs[0]):
            return Product(inputs[0], right, columns=True)
    if node.op_type == "Gemm" and len(inputs) == 2 and _number(node, "alpha", 1.0) == 1.0:
        transposed = _number(node, "transA", 0), _number(node, "transB", 0)
        if transposed == (1, 0):
            return Product(inputs[0], inputs[1], columns=False)
        if transposed == (0, 1):
            return Product(inputs[0], inputs[1], columns=True)
    return None


def outer_product_of(result: Expr) -> OuterProduct | None:
    """The product that ``result`` was recorded as, when it is one of two matrices."""
    node = result.value.producer()
    if node is None or any(v is None for v in node.inputs) or len(node.inputs) != 2:
        return None
    factor, matrix = (v for v in node.inputs if v is not None)
    if not _is_matrix(matrix) or not _is_matrix(factor):
        return None
    if node.op_type == "MatMul":
        return OuterProduct(factor, matrix, transposed=False)
    plain = _number(node, "alpha", 1.0) == 1.0 and _number(node, "transA", 0) == 0
    if node.op_type == "Gemm" and plain:
        return OuterProduct(factor, matrix, transposed=_number(node, "transB", 0) == 1)
    return None


def multiply_rows(product: OuterProduct, factors: Expr, matrix: Expr) -> Expr:
    """``product`` of all iterations at once: factors [N, R, K] to results [N, R, M]."""
    result = op.Gemm(_rows_in_one(factors), matrix, transB=int(product.transposed))
    width = matrix.dim(0 if product.transposed else 1)
    return result.reshape(op.Concat(op.Shape(factors, start=0, end=2), width, axis=0))


def _rows_in_one(x: Expr) -> Expr:
    """Matrices [N, R, K] as one [N R, K]; K may be 0, which leaves no -1 to be found."""
    if x.dims[2]:
        return op.Reshape(x, op.Concat([-1], x.dim(2), axis=0))
    return x.reshape(op.Concat(op.Mul(x.dim(0), x.dim(1)), x.dim(2), axis=0))


def _columns_in_one(x: Expr) -> Expr:
    """Rows [R, N, K] as one matrix [R, N K]; R may be 0."""
    if x.has_rank and x.dims[0]:
        return op.Reshape(x, [0, -1])
    return x.reshape(op.Concat(x.dim(0), op.Mul(x.dim(1), x.dim(2)), axis=0))


def total_of(contribution: Expr) -> Total | None:
    """The sum that ``contribution`` was recorded as, when its axes are constant."""
    node = contribution.value.producer()
    if node is None or node.op_type != "ReduceSum" or len(node.inputs) < 2:
        return None
    operand, axes = node.inputs[0], node.inputs[1]
    tensor = ir.convenience.get_const_tensor(axes) if axes is not None else None
    if operand is None or tensor is None or not tensor.size or operand.shape is None:
        return None
    rank = operand.shape.rank()
    found = tuple(sorted(int(a) % rank for a in np.asarray(tensor.numpy()).reshape(-1)))
    return Total(operand, found, bool(_number(node, "keepdims", 1)))


def contract(product: Product, left: Expr, right: Expr, trips: int | None, start: Expr | None = None) -> Expr:
    """The sum over iterations of ``product``, from its stacked factors ([N, ...] each), and of ``start``.

    ``trips`` is N where that is known and all iterations count.
    """
    if left.rank > 3:
        result = _contract_stacks(product, left, right)
        return result if start is None else start + result
    if product.columns:
        left, right = (op.Transpose(x, perm=[1, 0, 2]) for x in (left, right))
        return op.Gemm(*map(_columns_in_one, (left, right)), start, transB=1)
    flat = [_rows_in_one(x) for x in (left, right)]
    for x, factor in zip(flat, (product.left, product.right), strict=True):
        if trips is not None and factor.shape is not None and factor.shape.is_static():
            rows, columns = factor.shape.numpy()
            x.value.shape = ir.Shape([trips * int(rows), int(columns)])
    return op.Gemm(*flat, start, transA=1)


def _contract_stacks(product: Product, left: Expr, right: Expr) -> Expr:
    """The sum over iterations of as many products as the factors have matrices: [N, B..., R, K] to [B..., K, M]."""
    batch = list(range(1, left.rank - 2))
    row, column = left.rank - 2, left.rank - 1
    if product.columns:
        rows = op.Transpose(left, perm=[*batch, row, 0, column])
        columns = op.Transpose(right, perm=[*batch, 0, column, row])
    else:
        rows = op.Transpose(left, perm=[*batch, column, 0, row])
        columns = op.Transpose(right, perm=[*batch, 0, row, column])
    outer, inner = (product.left.shape, product.right.shape)
    assert outer is not None
    assert inner is not None
    stack, k, m = (
        [int(d) for d in outer.numpy()[:-2]],
        outer[-2 if product.columns else -1],
        inner[-2 if product.columns else -1],
    )
    return op.MatMul(op.Reshape(rows, [*stack, k, -1]), op.Reshape(columns, [*stack, -1, m]))


def plus_product(start: Expr, contribution: Expr) -> Expr | None:
    """``start + contribution`` in one Gemm, where the contribution is a Gemm: no product lies beside the sum."""
    node = contribution.value.producer()
    if node is None or node.op_type != "Gemm" or len(node.inputs) != 2 or start.dtype != contribution.dtype:
        return None
    if start.value.shape is None or not _is_matrix(start.value) or None in node.inputs:
        return None
    left, right = (start.builder.expr(v) for v in node.inputs if v is not None)
    result = op.Gemm(left, right, start, **{name: attribute.value for name, attribute in node.attributes.items()})
    result.value.shape = start.value.shape
    return result


def total(found: Total, operand: Expr) -> Expr:
    """The sum over iterations of ``found``, from its stacked operand."""
    if found.keepdims:
        summed = operand.sum([axis + 1 for axis in found.axes], keepdims=True)
        return summed.sum([0])
    return operand.sum([0, *(axis + 1 for axis in found.axes)])


def unmasked(part: _Part) -> _Part:
    """``part`` with a mask instead of operands that are zero in the iterations that do not count."""
    operands = (part.operand,) if isinstance(part, Total) else (part.left, part.right)
    found = [_under_mask(operand) for operand in operands]
    mask = found[0][1]
    if mask is None or any(other != mask for _, other in found):
        return part
    if isinstance(part, Total):
        return dataclasses.replace(part, operand=found[0][0], mask=mask)
    return dataclasses.replace(part, left=found[0][0], right=found[1][0], mask=mask)


def _under_mask(value: ir.Value) -> tuple[ir.Value, Mask | None]:
    """What ``value`` is where a scalar predicate lets it be; it is zero elsewhere."""
    node = value.producer()
    if node is None or node.op_type != "Where":
        return value, None
    predicate, yes, no = node.inputs
    if predicate is None or yes is None or no is None or predicate.shape is None or predicate.shape.rank():
        return value, None
    if _is_zero(no):
        return yes, Mask(predicate, holds=True)
    return (no, Mask(predicate, holds=False)) if _is_zero(yes) else (value, None)


def _is_zero(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and not tensor.numpy().any()


def _transposed(value: ir.Value) -> ir.Value | None:
    """The matrix, or stack of matrices, that ``value`` is the transpose of."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.inputs[0] is None:
        return None
    perm = node.attributes.get("perm")
    if perm is None:
        return node.inputs[0] if _is_matrix(node.inputs[0]) else None
    order = list(perm.as_ints())
    rank = len(order)
    return node.inputs[0] if rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2] else None


def _are_alike(left: ir.Value, right: ir.Value, result: ir.Value) -> bool:
    """Two matrices; or two stacks of as many matrices, whose numbers are fewer than those of their products."""
    if _is_matrix(left) and _is_matrix(right):
        return True
    shapes = [v.shape for v in (left, right)]
    if any(s is None or not s.is_static() or s.rank() < 3 for s in shapes):
        return False
    one, other = (tuple(s.numpy()) for s in shapes if s is not None)
    if one[:-2] != other[:-2] or left.dtype != result.dtype:
        return False
    batch, products = math.prod(one[:-2]), math.prod(one[-2:]) * math.prod(other[-2:])
    rows = one[-2] if one[-2] == other[-2] else one[-1]
    return math.prod(one) + math.prod(other) <= batch * products // max(rows * rows, 1)


def size_of_result(product: Product) -> int | None:
    """Elements of the product of two matrices; None where only the run knows."""
    shapes = [v.shape for v in (product.left, product.right)]
    if any(s is None or s.rank() != 2 or not s.is_static() for s in shapes):
        return None
    one, other = (tuple(s.numpy()) for s in shapes if s is not None)
    return one[0] * other[0] if product.columns else one[1] * other[1]


def _is_matrix(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() == 2


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)
