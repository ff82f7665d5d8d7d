"""Values that shapes and constants fix become constants: no compiler has to understand shape arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import subgraphs_of

_SUMS = {
    "MatMul": 2,
    "Gemm": 2,
    "Einsum": 2,
    "Conv": 2,
    "ReduceSum": 1,
    "ReduceSumSquare": 1,
    "ReduceL1": 1,
    "ReduceL2": 1,
}
"""Operators that give 0 where they add up nothing, and how many of their inputs they add up."""


class FoldKnownValuesPass(ir.passes.InPlacePass):
    """Replaces nodes whose results are known by Constants, in the main graph and all subgraphs.

    Known are the values that type inference found, and tensors of known shape without elements or summed from none.

    Given ``s = Shape (x); y = Reshape (z, s)`` with x of shape [2, 3], the result is
    ``s = Constant <value = {2, 3}> (); y = Reshape (z, s)``.

    Args:
        constants: What ``infer_types`` knows of this model.
    """

    def __init__(self, constants: Mapping[ir.Value, np.ndarray]) -> None:
        super().__init__()
        self._constants = constants

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds in one sweep."""
        return ir.passes.PassResult(model, self._graph(model.graph))

    def _graph(self, graph: ir.Graph) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(subgraph)
            if node.op_type == "Constant" or not node.outputs:
                continue
            arrays = [self._value(node, output) for output in node.outputs]
            found = [array for array in arrays if array is not None]
            if len(found) < len(arrays):
                continue
            replace_by_constants(graph, node, found)
            changed = True
        return changed

    def _value(self, node: ir.Node, output: ir.Value) -> np.ndarray | None:
        if output in self._constants and output.dtype is not None:
            return self._constants[output].astype(output.dtype.numpy())
        if not isinstance(output.type, ir.TensorType) or output.shape is None or not output.shape.is_static():
            return None
        shape = tuple(int(d) for d in output.shape.dims if isinstance(d, int))
        if 0 in shape:
            return np.empty(shape, dtype=output.type.dtype.numpy())
        if node.op_type in _SUMS and any(_is_empty(v) for v in node.inputs[: _SUMS[node.op_type]]):
            return np.zeros(shape, dtype=output.type.dtype.numpy()) if len(node.inputs) < 3 else None
        return _asked_shape(node)


def _asked_shape(node: ir.Node) -> np.ndarray | None:
    """What a Shape or Size gives for an input of known shape."""
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    if node.op_type not in {"Shape", "Size"} or shape is None or not shape.is_static():
        return None
    dims = np.array([int(d) for d in shape.dims if isinstance(d, int)], dtype=np.int64)
    if node.op_type == "Size":
        return np.asarray(dims.prod(), dtype=np.int64)
    return dims[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(dims))]


def _is_empty(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.rank() > 0 and 0 in value.shape.dims


def replace_by_constants(graph: ir.Graph, node: ir.Node, arrays: Sequence[np.ndarray]) -> None:
    """Puts a Constant in the place of each output of ``node``."""
    made = [_constant(array, output) for array, output in zip(arrays, node.outputs, strict=True)]
    outputs = [constant.outputs[0] for constant in made]
    ir.convenience.replace_nodes_and_values(graph, node, [node], made, node.outputs, outputs)


def _constant(array: np.ndarray, output: ir.Value) -> ir.Node:
    tensor = ir.Tensor(array, name=output.name)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=f"{output.name}.constant")
    node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
    node.outputs[0].name = output.name
    return node
