"""Leaves a scalar factor to the products that read what is scaled, as their ``alpha``."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnx_cfad.rewriters.added_nodes import AddedNodesPass

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_LEAST = 2.0**-24


class ScaleProductsPass(AddedNodesPass):
    """Moves constant factors into the products that a transformation added, at every depth.

    Given ``s = Mul (x, c); y = Gemm (s, w)`` with a number c, the result is ``y = Gemm <alpha = c> (x, w)``. The Mul is
    dead when nothing else reads it: the mean over a batch scales the cotangent of scores that only products read.
    """

    operator = "Gemm"

    def rewrite(self, node: ir.Node) -> bool:
        """See ``AddedNodesPass.rewrite``."""
        changed = False
        for index in range(2):
            x, factor = scaled(node.inputs[index], self._kept)
            alpha = node.attributes.get_float("alpha", 1.0) * factor
            if x is not node.inputs[index] and _is_float32(alpha):
                node.attributes["alpha"] = ir.AttrFloat32("alpha", alpha)
                node.replace_input_with(index, x)
                changed = True
        return changed


def scaled(value: ir.Value | None, kept: Collection[ir.Node | ir.Value]) -> tuple[ir.Value | None, float]:
    """What ``value`` is a multiple of, and the multiple, where nothing but products and sums reads it; else itself."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.op_type != "Mul" or node in kept or value.dtype not in _TYPES:
        return value, 1.0
    if value.is_graph_output() or not all(_may_scale(reader, index, kept) for reader, index in value.uses()):
        return value, 1.0
    for x, number in (node.inputs, node.inputs[::-1]):
        factor = None if number in kept else _number(number)
        if x is not None and factor is not None:
            return x, factor
    return value, 1.0


def _may_scale(reader: ir.Node, index: int, kept: Collection[ir.Node | ir.Value]) -> bool:
    """Whether the reader may scale what it makes instead of its input ``index``."""
    return reader not in kept and reader.op_type in ("Gemm", "ReduceSum") and index < 2


def _number(value: ir.Value | None) -> float | None:
    """The number of a constant without axes, where float32 has it; a product by 0 would not see what is infinite.

    One far from 1 stays where it is: it may be what keeps the product from overflowing.
    """
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.shape.rank():
        return None
    number = float(tensor.numpy())
    return number if _LEAST <= abs(number) <= 1 / _LEAST and _is_float32(number) else None


def _is_float32(number: float) -> bool:
    return float(np.float32(number)) == number
