"""Floating-point operations of a region, as far as shapes are known: an order of magnitude to weigh plans with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.cost import SYMBOLIC_DIM, loop_cost
from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, loop_site

_FREE = frozenset(
    ("Identity", "Constant", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Shape", "Size", "ConstantOfShape")
)
_SLOW = 10  # operations of one element of an exponential, a logarithm, a power, ...
_TRANSCENDENTAL = frozenset(
    ("Exp", "Log", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "LogSoftmax", "Pow", "Sin", "Cos", "Tan", "Softplus")
    + ("Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh", "Elu", "Selu", "Celu", "Mish", "Sqrt")
)


def work_of(nodes: Iterable[ir.Node], assumed_trips: int, measured: Mapping[ir.Node, int] | None = None) -> int:
    """Operations of one pass over ``nodes``; of an If the larger branch counts.

    Args:
        nodes: A graph.
        assumed_trips: Iterations of a loop of which nothing is known.
        measured: Iterations of loops that a profile knows.
    """
    return sum(_work(node, assumed_trips, measured or {}) for node in nodes)


def _work(node: ir.Node, assumed_trips: int, measured: Mapping[ir.Node, int]) -> int:
    if is_loop(node):
        trips = loop_cost(node, assumed_trips, measured).trips
        return trips * work_of(loop_site(node).body, assumed_trips, measured)
    if is_branch(node):
        return max(work_of(branch, assumed_trips, measured) for branch in branch_site(node).branches)
    if node.op_type in _FREE:
        return 0
    made = sum(map(_elements, node.outputs))
    return made * _per_element(node)


def _per_element(node: ir.Node) -> int:
    """Operations for one element of the result."""
    operands = [v for v in node.inputs if v is not None]
    if node.op_type == "MatMul" and len(operands) > 1:
        return 2 * _dim(operands[0], -1)
    if node.op_type == "Gemm" and operands:
        return 2 * _dim(operands[0], 0 if node.attributes.get_int("transA", 0) else 1)
    if node.op_type in ("Conv", "ConvTranspose") and len(operands) > 1:
        return 2 * max(_elements(operands[1]) // max(_dim(operands[1], 0), 1), 1)
    if node.op_type in ("LSTM", "GRU", "RNN") and len(operands) > 2:
        return 2 * (_dim(operands[1], -1) + _dim(operands[2], -1)) * {"LSTM": 4, "GRU": 3}.get(node.op_type, 1)
    return _SLOW if node.op_type in _TRANSCENDENTAL else 1


def _elements(value: ir.Value) -> int:
    if value.shape is None:
        return SYMBOLIC_DIM
    return int(np.prod([d if isinstance(d, int) else SYMBOLIC_DIM for d in value.shape.dims], dtype=np.int64))


def _dim(value: ir.Value, axis: int) -> int:
    if value.shape is None or value.shape.rank() < 1 or axis >= value.shape.rank():
        return SYMBOLIC_DIM
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else SYMBOLIC_DIM
