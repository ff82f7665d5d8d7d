"""Resize by a factor that takes a length to a hair below a whole number, which ONNX Runtime 1.32 rounds up."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.stretches import stretches
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.rewrite_nodes import RewriteNodesPass


class RoundResizePass(RewriteNodesPass):
    """Makes such a Resize say the size that ONNX Runtime gives it, wherever lengths and factors are known.

    Sizes take the place of factors where each factor is the quotient of its sizes, which changes no bit. Elsewhere the
    factors in question are raised to the next number of float32, whose product is not below the whole number: results
    differ in their last digits then. Inferred shapes are those of ONNX Runtime already.
    """

    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Replaces one input of a Resize."""
        found = stretches(node)
        if found is None or not any(stretch.is_ambiguous for stretch in found):
            return False
        if all(stretch.is_quotient for stretch in found):
            sizes = np.asarray([stretch.rounded for stretch in found], np.int64)
            node.resize_inputs(4)
            node.replace_input_with(2, None)
            node.replace_input_with(3, _constant(sizes, f"{node.name or 'resize'}.sizes", graph, namer))
        else:
            scales = np.asarray([stretch.above for stretch in found], np.float32)
            node.replace_input_with(2, _constant(scales, f"{node.name or 'resize'}.scales", graph, namer))
        return True


def _constant(array: np.ndarray, name: str, graph: ir.Graph, namer: Namer) -> ir.Value:
    tensor = ir.tensor(array, name=namer.fresh(name))
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
    value = ir.Value(name=tensor.name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value
