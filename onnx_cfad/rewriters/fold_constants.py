"""What constants alone decide is computed once, where the result is exact: weights in another order, shape arithmetic.

Relay would compile a kernel for each such node in order to run it once, which takes longer than all the rest of a body.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.constants import evaluated
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.rewriters.fold_known_values import replace_by_constants

_MOVES = frozenset(
    ("Concat", "Expand", "Flatten", "Gather", "GatherND", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze")
    + ("Tile", "Transpose", "Unsqueeze", "ConstantOfShape", "Range", "Shape", "Size", "Where", "Cast")
)
_EXACT = frozenset(
    ("Abs", "Add", "And", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    + ("Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Sign", "Sqrt", "Sub", "Xor")
)
"""Rounded once, as IEEE 754 says, so that every implementation gives the same bits."""

_SMALL = 4096  # elements: a constant of so many may take more room than what it is computed from
_LARGEST = 1 << 24


class FoldConstantsPass(ir.passes.InPlacePass):
    """Replaces nodes that read constants alone by Constants, in the main graph and all subgraphs.

    Given ``t = Transpose <perm = [1, 0]> (w)`` of an initializer w, the result is ``t = Constant <value = ...> ()``.
    A result that takes more room than its inputs do is left to the run, unless it is small. Shapes have been inferred.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds in one sweep, inner graphs after what they capture."""
        return ir.passes.PassResult(model, _fold(model.graph, model.opset_imports))


def _fold(graph: ir.Graph, opsets: dict[str, int]) -> bool:
    changed = False
    for node in list(graph):
        for subgraph in subgraphs_of(node):
            changed |= _fold(subgraph, opsets)
        inputs = _constant_inputs(node)
        if inputs is None or not _fits(node, inputs):
            continue
        with np.errstate(all="ignore"):
            arrays = evaluated(node, inputs, opsets)
        if len(arrays) == len(node.outputs):
            replace_by_constants(graph, node, arrays)
            changed = True
    return changed


def _constant_inputs(node: ir.Node) -> list[np.ndarray | None] | None:
    """The inputs, None for one that is left out; None where not all are constants, or the operator may round."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _MOVES | _EXACT or not node.inputs:
        return None
    found: list[np.ndarray | None] = []
    for value in node.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is not None and (tensor is None or value.is_graph_input()):
            return None
        found.append(None if tensor is None else tensor.numpy())
    return None if node.op_type in ("Div", "Mod") and _has_integer_zero(found[1]) else found


def _has_integer_zero(divisor: np.ndarray | None) -> bool:
    return divisor is not None and divisor.dtype.kind in "iu" and not divisor.all()


def _fits(node: ir.Node, inputs: list[np.ndarray | None]) -> bool:
    """Whether the results, of known shape, are worth their room."""
    given = sum(array.size for array in inputs if array is not None)
    made = 0
    for output in node.outputs:
        if output.shape is None or not output.shape.is_static():
            return False
        made += math.prod(int(d) for d in output.shape.dims if isinstance(d, int))
    return made <= min(max(given, _SMALL), _LARGEST)
