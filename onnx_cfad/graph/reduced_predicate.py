"""Predicates that reduce a vector of comparisons: one decision for what might be one decision for each element."""

from __future__ import annotations

import onnx_ir as ir

_REDUCES = frozenset(("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceMean"))
_PASSES = frozenset(
    ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Not", "Greater", "GreaterOrEqual", "Equal")
)
_DEEP = 8  # operators looked through


def reduced_vector(predicate: ir.Value) -> ir.Value | None:
    """The boolean vector that ``predicate`` is the "any" or "all" of; None where it is none.

    Exporters write ``(x > 0).all()`` as a reduction of the comparison cast to numbers, then a cast or a comparison. An
    If over it could be a mask with a decision for each element. Whether that is meant only the author knows.
    """
    value, reduced = predicate, False
    for _ in range(_DEEP):
        node = value.producer()
        if reduced and value.dtype == ir.DataType.BOOL and (value.shape is None or value.shape.rank() > 0):
            return value
        if node is None or node.op_type not in _REDUCES | _PASSES or node.inputs[0] is None:
            return None
        reduced |= node.op_type in _REDUCES
        value = node.inputs[0]
    return None
