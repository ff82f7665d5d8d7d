"""Shapes of operators outside the default domain that neither onnx nor onnx-shape-inference knows."""

from __future__ import annotations

import onnx_ir as ir

_SAME = frozenset(("Scaler", "Normalizer", "Imputer", "Binarizer"))
_TARGETS = {"LinearRegressor": "targets", "TreeEnsembleRegressor": "n_targets", "TreeEnsemble": "n_targets"}


def shape_of(node: ir.Node) -> ir.Shape | None:
    """The shape of the first output of ``node``, None where nothing is known of it."""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None:
        return None
    if node.domain == "ai.onnx.ml":
        if node.op_type in _SAME:
            return x.shape.copy()
        if node.op_type in _TARGETS or node.op_type == "SVMRegressor":
            name = _TARGETS.get(node.op_type)
            count = node.attributes.get_int(name, 1) if name is not None else 1
            return ir.Shape([x.shape[0] if x.shape.rank() > 1 else 1, count])
    if node.domain == "com.microsoft" and node.op_type in ("FusedMatMul", "TransposeMatMul"):
        return _batch_turned(node, x.shape)
    return None


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
