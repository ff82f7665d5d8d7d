"""Col2Im adds columns into an image; its adjoint reads them back: a Conv whose kernels are the unit blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.resize import identity


@vjp("Col2Im")
def col2im(
    ct: Expr,
    y: Expr,
    columns: Expr,
    image_shape: Expr,
    block_shape: Expr,
    *,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> tuple[Expr, None, None]:
    image = op.Reshape(ct, concat([ct.builder.constant([-1, 1]), image_shape]))  # [N * C, 1, ...]
    read = op.Conv(image, _units(block_shape, ct.dtype), strides=strides, dilations=dilations, pads=pads)
    return read.reshape(columns.shape), None, None


def _units(block_shape: Expr, dtype: ir.DataType) -> Expr:
    """For each element of a block the block that is 1 there: [B, 1, ...] where B counts the elements."""
    known = block_shape.const
    if known is not None:
        count = int(np.prod(known))
        return block_shape.builder.constant(np.eye(count).reshape(count, 1, *map(int, known)), dtype)
    count = op.ReduceProd(block_shape, keepdims=1)
    one = block_shape.builder.constant([1])
    return op.Reshape(identity(count, dtype, block_shape.builder), concat([count, one, block_shape]))
