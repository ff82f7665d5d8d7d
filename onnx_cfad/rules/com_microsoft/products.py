"""Matrix products: with transposed operands, and with a weight of a few bits a number."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.decomposition import decomposed

DOMAIN = "com.microsoft"


@decomposed("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_mat_mul(
    a: Expr,
    b: Expr,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Expr:
    product = _turned(a, transA, transBatchA) @ _turned(b, transB, transBatchB)
    return product if alpha == 1 else product * alpha


def _turned(x: Expr, transposed: int, batch: int) -> Expr:
    """``x`` with its rows behind the batch axes where they come first, then with its last axes swapped if asked for."""
    if x.rank < 2:
        return x
    if batch:
        x = _permuted(x, [*range(1, x.rank - 1), 0, x.rank - 1])
    return _permuted(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2]) if transposed else x


def _permuted(x: Expr, perm: list[int]) -> Expr:
    turned = op.Transpose(x, perm=perm)
    assert x.value.shape is not None
    turned.value.shape = ir.Shape([x.value.shape[axis] for axis in perm])
    return turned


@decomposed("MatMulNBits", domain=DOMAIN)
def mat_mul_n_bits(
    a: Expr,
    b: Expr,
    scales: Expr,
    zero_points: Expr | None = None,
    g_idx: Expr | None = None,
    bias: Expr | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
) -> Expr:
    """A @ transpose(W), where W [N, K] are whole numbers from ``b`` less a zero point, times a scale for each block."""
    if g_idx is not None:
        raise UnsupportedOp("", "MatMulNBits with g_idx, an order of rows of its own", "Quantise without g_idx.")
    if bits not in (2, 4, 8):
        raise UnsupportedOp("", f"MatMulNBits with {bits} bits, expected 2, 4 or 8", "Quantise with 4 or 8 bits.")
    blocks = -(-K // block_size)
    numbers = _unpacked(b.reshape([N, -1]), bits).cast(a.dtype).reshape([N, blocks, block_size])
    if zero_points is None:
        zero = a.builder.constant(2 ** (bits - 1), a.dtype)
    elif zero_points.dtype == ir.DataType.UINT8:
        packed: Expr = op.Slice(_unpacked(zero_points.reshape([N, -1]), bits), [0], [blocks], [1])
        zero = packed.cast(a.dtype).reshape([N, blocks, 1])
    else:
        zero = zero_points.reshape([N, blocks, 1])
    weight = ((numbers - zero) * scales.reshape([N, blocks, 1])).reshape([N, -1])
    weight = op.Transpose(op.Slice(weight, [0], [K], [1]), perm=[1, 0])
    weight.value.shape = ir.Shape([K, N])
    product = a @ weight
    return product if bias is None else product + bias


def _unpacked(packed: Expr, bits: int) -> Expr:
    """The numbers of ``bits`` bits in bytes [N, n], the lowest bits first: [N, n * 8 / bits]."""
    if bits == 8:
        return packed
    base, parts = 2**bits, 8 // bits
    rest = packed.cast(ir.DataType.INT32)
    numbers: list[Expr] = []
    for _ in range(parts):
        numbers.append(op.Mod(rest, base).unsqueeze([2]))
        rest = op.Div(rest, base)
    return op.Reshape(op.Concat(*numbers, axis=2), [0, -1])
