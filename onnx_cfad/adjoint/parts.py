"""Contributions that are zero but for a part of an axis: where their parts are all of it, their sum is one Concat.

The cotangents of a tensor that was cut up by Slices come so: each is padded with zeros to the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat
from onnx_cfad.graph.trips import constant_of


@dataclasses.dataclass(frozen=True)
class _Part:
    """``piece`` is what a tensor has from ``start`` to ``stop`` along ``axis``, whose length is ``whole``."""

    piece: ir.Value
    axis: int
    start: int
    stop: int
    whole: int


def joined_parts(contributions: Sequence[Expr]) -> list[Expr] | None:
    """Contributions of the same sum, of which those that make up a whole axis are one; None where there are none."""
    found = {k: part for k, x in enumerate(contributions) if (part := _part_of(x)) is not None}
    for axis, whole in dict.fromkeys((part.axis, part.whole) for part in found.values()):
        chain, reached = [], 0
        for k in sorted(found, key=lambda k: found[k].start):
            part = found[k]
            if (part.axis, part.whole, part.start) == (axis, whole, reached) and part.stop > reached:
                chain.append(k)
                reached = part.stop
        if reached == whole and len(chain) > 1:
            builder = contributions[0].builder
            one = concat([builder.expr(found[k].piece) for k in chain], axis=axis)
            one.value.shape = contributions[chain[0]].value.shape
            return [one, *(x for k, x in enumerate(contributions) if k not in chain)]
    return None


def _part_of(x: Expr) -> _Part | None:
    node = x.value.producer()
    if node is None or node.op_type != "Pad" or len(node.inputs) != 2 or "mode" in node.attributes:
        return None
    piece, widths, shape = node.inputs[0], constant_of(node.inputs[1]), x.value.shape
    if piece is None or widths is None or shape is None or widths.size != 2 * shape.rank():
        return None
    before, after = widths.reshape(2, -1).tolist()
    axes = [axis for axis in range(shape.rank()) if before[axis] or after[axis]]
    whole = shape[axes[0]] if len(axes) == 1 else None
    if not isinstance(whole, int) or min(*before, *after) < 0:
        return None
    axis = axes[0]
    return _Part(piece, axis, before[axis], whole - after[axis], whole)
