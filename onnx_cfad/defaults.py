"""Default values of graph inputs: initializers that a caller may replace in a run, so that nothing rests on them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def set_defaults_aside(model: ir.Model) -> Mapping[str, ir.TensorProtocol]:
    """Takes the values of initializers that are graph inputs out of ``model``, where they would be taken for constants.

    Returns:
        The values by name, for ``give_defaults_back``.
    """
    found: dict[str, ir.TensorProtocol] = {}
    for value in model.graph.inputs:
        if value.name and value.const_value is not None:
            found[value.name] = value.const_value
            value.const_value = None
    return found


def give_defaults_back(model: ir.Model, defaults: Mapping[str, ir.TensorProtocol]) -> None:
    """Makes the inputs that ``defaults`` name optional again."""
    for value in model.graph.inputs:
        if value.name is not None and value.name in defaults:
            value.const_value = defaults[value.name]
