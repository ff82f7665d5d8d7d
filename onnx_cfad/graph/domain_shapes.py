"""Shapes of operators outside the default domain that neither onnx nor onnx-shape-inference knows, or knows wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

MISREAD = frozenset(("ArrayFeatureExtractor",))
"""Those of which onnx-shape-inference 0.4 says something else: it counts the indices along their last axis alone."""

_SAME = frozenset(("Scaler", "Normalizer", "Imputer", "Binarizer"))
_TARGETS = {"LinearRegressor": "targets", "TreeEnsembleRegressor": "n_targets", "TreeEnsemble": "n_targets"}


def shape_of(node: ir.Node, fresh: Callable[[], ir.SymbolicDim]) -> ir.Shape | None:
    """The shape of the first output of ``node``, None where nothing is known of it; ``fresh`` gives new symbols."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None:
        return None
    if node.domain == "ai.onnx.ml":
        if node.op_type == "ArrayFeatureExtractor":
            return _picked(x.shape, node.inputs[1], fresh)
        if node.op_type in _SAME:
            return x.shape.copy()
        if node.op_type in _TARGETS or node.op_type == "SVMRegressor":
            name = _TARGETS.get(node.op_type)
            count = node.attributes.get_int(name, 1) if name is not None else 1
            return ir.Shape([x.shape[0] if x.shape.rank() > 1 else 1, count])
    if node.domain == "com.microsoft" and node.op_type in ("FusedMatMul", "TransposeMatMul"):
        return _batch_turned(node, x.shape)
    return None


def _picked(source: ir.Shape, indices: ir.Value | None, fresh: Callable[[], ir.SymbolicDim]) -> ir.Shape:
    """As many columns as there are indices, of whatever shape; a vector is a matrix of one row."""
    dims = None if indices is None or indices.shape is None else [d for d in indices.shape.dims if d != 1]
    numbers = [] if dims is None else [d for d in dims if isinstance(d, int)]
    if dims is not None and len(numbers) == len(dims):
        count: int | ir.SymbolicDim = math.prod(numbers)
    else:
        count = dims[0] if dims is not None and len(dims) == 1 else fresh()
    return ir.Shape([*(source.dims[:-1] if source.rank() > 1 else [1]), count])


def _batch_turned(node: ir.Node, left: ir.Shape) -> ir.Shape | None:
    """A product whose rows come before the batch axes in one operand; both have one batch of the same length."""
    right = node.inputs[1].shape if node.inputs[1] is not None else None
    if right is None or left.rank() != right.rank() or left.rank() < 3:
        return None
    flags = node.attributes.get_int
    dims = [
        [*shape.dims[1:-1], shape[0], shape[-1]] if flags(f"transBatch{side}", 0) else list(shape.dims)
        for side, shape in (("A", left), ("B", right))
    ]
    rows = dims[0][-1] if flags("transA", 0) else dims[0][-2]
    columns = dims[1][-2] if flags("transB", 0) else dims[1][-1]
    return ir.Shape([*dims[0][:-2], rows, columns])
