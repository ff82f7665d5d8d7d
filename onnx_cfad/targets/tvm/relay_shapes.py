"""Shape functions that Relay lacks: without one, an operator cannot be run on a shape that only the run knows.

Runs in the child alone.
"""

from __future__ import annotations

import importlib

_ELEMENTWISE = (
    *("abs", "sign", "trunc", "erf", "copy", "isnan", "isfinite", "isinf"),
    *("sin", "cos", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
)


def register_shape_functions() -> None:
    """Enters the shape function of an elementwise operator for those that have none."""
    registry = importlib.import_module("tvm.relay.op.op")
    elementwise = importlib.import_module("tvm.relay.op._tensor").elemwise_shape_func
    for name in _ELEMENTWISE:
        operator = registry.get(name)
        if operator.get_attr("FShapeFunc") is None:
            registry.register_shape_func(name, False, elementwise)
