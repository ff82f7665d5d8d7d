"""Pad along some axes, written for all of them.

ONNX Runtime 1.32 moves a Transpose past a Pad and permutes the widths as if there was one for every axis: with the
input ``axes`` it fails, or pads other axes than it should.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op


def pad_along(x: Expr, widths: Expr | list[int], axes: Expr | list[int], value: Expr | None = None) -> Expr:
    """``x`` with ``widths`` (before each of ``axes``, then behind each) of ``value``, 0 by default.

    Axes that only the run knows, and those of a tensor of unknown rank, stay an input of Pad.
    """
    widths = widths if isinstance(widths, Expr) else x.builder.constant(np.asarray(widths, np.int64))
    known = np.asarray(axes) if isinstance(axes, list) else axes.const
    if known is None or not x.has_rank:
        return op.Pad(x, widths, value, axes)
    rank, count = x.rank, known.size
    places = np.full(2 * rank, 2 * count)  # which of the widths and a last 0 each axis gets
    places[known % rank] = np.arange(count)
    places[known % rank + rank] = np.arange(count) + count
    if widths.const is not None:
        every = np.append(widths.const, 0)[places]
        return op.Pad(x, x.builder.constant(every.astype(np.int64)), value)
    if np.array_equal(known % rank, np.arange(rank)):
        return op.Pad(x, widths, value)
    padded = concat([widths.cast(ir.DataType.INT64), x.builder.constant(np.zeros(1, np.int64))])
    return op.Pad(x, op.Gather(padded, x.builder.constant(places), axis=0), value)
