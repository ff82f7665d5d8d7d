"""Which constant values of a model are weights: what ``INITIALIZERS`` stands for.

Exporters write weights as initializers, or, inside branches and where a graph was inlined, as Constant nodes. Both are
weights where a derivative can pass from them to what reads them. Numbers that set up an operator (the scales of a
Resize, the bounds of a Clip) are not, also where they are joined or reshaped on their way there, nor are Constant
scalars, which are part of a formula.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.rules.registry import NoDerivative, rule_for

_SETTINGS = {
    "BatchNormalization": (3, 4),  # running statistics
    "Clip": (1, 2),
    "Dropout": (1,),
    "OneHot": (0, 1, 2),
    "Pad": (2,),
    "Pow": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "RoiAlign": (1,),
    "Upsample": (1,),
}
"""The inputs of operators that hold settings."""


_MOVES = frozenset(("Cast", "Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"))
"""Operators that hand numbers on as they are."""


def weights_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """The weights that ``graph`` itself holds (not its subgraphs): initializers first, then Constant nodes."""
    yield from [value for value in graph.initializers.values() if _is_weight(value)]
    for node in graph:
        if node.op_type == "Constant" and not _is_scalar(node.outputs[0]) and _is_weight(node.outputs[0]):
            yield node.outputs[0]


def _is_weight(value: ir.Value) -> bool:
    tensor = isinstance(value.type, ir.TensorType) and value.dtype is not None
    read = value.is_graph_output() or any(_varies(node, index) for node, index in value.uses())
    return tensor and read and carries_derivative(value)


def _is_scalar(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is None or tensor.shape.rank() == 0


def _varies(node: ir.Node, index: int) -> bool:
    """Whether ``node`` may pass a derivative to its input ``index``, which is no setting."""
    return not isinstance(rule_for(node), NoDerivative) and not _sets_up(node, index)


def _sets_up(node: ir.Node, index: int) -> bool:
    """Whether input ``index`` is a setting of ``node``, or moved to nothing but settings."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if index in _SETTINGS.get(node.op_type, ()):
        return True
    moved = node.outputs[0] if node.op_type in _MOVES else None
    if moved is None or moved.is_graph_output():
        return False
    return bool(moved.uses()) and all(_sets_up(use.node, use.idx) for use in moved.uses())
