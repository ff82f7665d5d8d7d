"""Integers that are linear in what is known in front of a loop, recorded there."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.iteration import Leaf, Linear
from onnx_cfad.rewriters.recorder import Recorder

Number = int | ir.Value
"""An integer in front of a loop; a vector of one element where the run decides."""


def number(op: Recorder, linear: Linear) -> Number:
    """Records a sum."""
    total: ir.Value | None = None
    for leaf, factor in linear.terms:
        term = _leaf(op, leaf)
        term = term if factor == 1 else op.Mul(term, factor)
        total = term if total is None else op.Add(total, term)
    if total is None:
        return linear.number
    return op.Add(total, linear.number) if linear.number else total


def vector(op: Recorder, linear: Linear) -> ir.Value:
    """Records a sum, as a vector also where it is known."""
    found = number(op, linear)
    return op.ints(found) if isinstance(found, int) else found


def _leaf(op: Recorder, leaf: Leaf) -> ir.Value:
    if isinstance(leaf, tuple):
        tensor, axis = leaf
        return op.Shape(tensor, start=axis, end=axis + 1)
    wide = leaf if leaf.dtype == ir.DataType.INT64 else op.Cast(leaf, to=int(ir.DataType.INT64))
    return op.Reshape(wide, op.ints(1))
