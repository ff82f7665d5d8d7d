"""Which nodes take a straight-through estimator in place of their derivative, as a mark that copies of them keep.

An integer made by a marked QuantizeLinear carries a cotangent (of the float number that it stands for), on its way
through operators that only move elements, to a marked DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.walk import graphs_of

_MARK = "onnx_cfad.straight_through"
_MOVES = frozenset(("Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"))


def mark_straight_through(model: ir.Model, operators: Collection[str]) -> None:
    """Marks every node, in any scope, whose operator (``domain::name`` outside the default domain) is named."""
    if not operators:
        return
    for graph in graphs_of(model.graph):
        for node in graph:
            name = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            if name in operators:
                node.meta[_MARK] = True
            quantises = name in operators and node.op_type == "QuantizeLinear"
            if quantises or (node.op_type in _MOVES and carries_estimate(node.inputs[0])):
                node.outputs[0].meta[_MARK] = True


def is_straight_through(node: ir.Node) -> bool:
    """Whether ``node`` takes its straight-through rule."""
    return bool(node.meta.get(_MARK))


def carries_estimate(value: ir.Value | None) -> bool:
    """Whether ``value`` is a quantised number that a cotangent passes through all the same."""
    return value is not None and bool(value.meta.get(_MARK))


def keep_mark(new: ir.Node, old: ir.Node) -> None:
    """Marks ``new``, a copy of ``old``, and its outputs as they are marked there."""
    for one, other in zip((new, *new.outputs), (old, *old.outputs), strict=True):
        if _MARK in other.meta:
            one.meta[_MARK] = True
