"""Sums the rows of a matrix by a product with ones, which ONNX Runtime 1.32 does in half to a sixth of the time."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import is_branch
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.scale_products import scaled

_MOST = 1024  # rows: more would be too many ones to declare
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class SumRowsPass(ir.passes.InPlacePass):
    """Turns the sums over the rows of a matrix that a transformation added into products, but for those in branches.

    Given ``b = ReduceSum <keepdims = 0> (x, {0})`` of x [R, M], the result is ``b = MatMul (ones, x)`` with R ones.

    It does so where R is known, and more than 1, in float32 and float64. Where x is a multiple of something, the factor
    takes the place of the ones.

    Args:
        namer: For the names of the ones.
        kept: Nodes to leave alone, and constants whose numbers may be replaced.
    """

    def __init__(self, namer: Namer, kept: Collection[ir.Node | ir.Value]) -> None:
        super().__init__()
        self._namer, self._kept = namer, kept

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every node outside of branches once."""
        known: dict[tuple[ir.DataType, tuple[int, ...], float], ir.Value] = {}
        found = [node for node in _outside_branches(model.graph) if node not in self._kept and _rows(node)]
        for node in found:
            x, factor = scaled(node.inputs[0], self._kept)
            assert x is not None
            assert x.dtype is not None
            dims = (*([1] if node.attributes.get_int("keepdims", 1) else []), _rows(node))
            key = x.dtype, dims, factor
            if key not in known:
                known[key] = self._row(model.graph, *key)
            product = ir.Node("", "MatMul", [known[key], x], name=node.name)
            ir.convenience.replace_nodes_and_values(
                _graph(node), node, [node], [product], node.outputs, product.outputs
            )
        return ir.passes.PassResult(model, bool(found))

    def _row(self, graph: ir.Graph, dtype: ir.DataType, dims: tuple[int, ...], number: float) -> ir.Value:
        name = self._namer.fresh("ones")
        tensor = ir.Tensor(np.full(dims, number, dtype.numpy()), name=name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims), const_value=tensor)
        graph.initializers.add(value)
        return value


def _outside_branches(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of ``graph`` and of the loop bodies in it.

    What is in a branch has no shape in the model that is written, and the rule of MatMul has to know ranks, that of
    ReduceSum has not: such a product could not be differentiated again.
    """
    found: list[ir.Node] = []
    for node in graph:
        found.append(node)
        if not is_branch(node):
            found.extend(inner for body in subgraphs_of(node) for inner in _outside_branches(body))
    return found


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def _rows(node: ir.Node) -> int:
    """How many rows ``node`` sums; 0 where it does something else, or they are better summed as they are."""
    if node.op_type != "ReduceSum" or len(node.inputs) < 2:
        return 0
    x, axes = node.inputs[:2]
    tensor = None if axes is None else ir.convenience.get_const_tensor(axes)
    if x is None or x.shape is None or x.shape.rank() != 2 or x.dtype not in _TYPES or tensor is None:
        return 0
    rows = x.shape[0]
    if tensor.numpy().tolist() not in ([0], [-2]) or not isinstance(rows, int):
        return 0
    return rows if 1 < rows <= _MOST else 0
