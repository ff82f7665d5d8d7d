"""Whether both branches of an If may run, so that a mask can select between their results; and if not, why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.dims import same_dim
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import BranchSite, is_branch, is_loop, label, loop_site
from onnx_cfad.graph.trips import constant_of, trip_count
from onnx_cfad.graph.walk import nodes_of, subgraphs_of

# Operands that say how large a result is: where data makes them, the branch that was not taken may fail on them.
_SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Pad", "TopK", "Split", "SplitToSequence", "Squeeze"), (1,)),
    **dict.fromkeys(("Unsqueeze", "OneHot", "CenterCropPad", "AffineGrid", "DFT"), (1,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"), (1,)),
    **dict.fromkeys(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Resize": (2, 3),
    "Col2Im": (1, 2),
    "STFT": (1, 3),
    "MaxUnpool": (2,),
}
# Operators that refuse an empty axis, with the attribute that names it and its default; without one, any axis.
_NEED_ELEMENTS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements", "ArgMax", "ArgMin"), ("axis", 0)),
    **dict.fromkeys(("TopK", "LayerNormalization", "RMSNormalization"), ("axis", -1)),
    **dict.fromkeys(("GatherND", "ScatterND"), ("", 0)),
}
_DATA_SHAPED = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression", "ImageDecoder", "StringSplit"))


def why_not_masked(site: BranchSite) -> str | None:
    """Why the branches of ``site`` must not both run; None where they may.

    The predicate may not ask for a shape: what was not taken might not fit the shapes that are there. Values that are
    out of range (an index, a divisor) are no reason: masking guards them.
    """
    if _asks_for_shape(site.predicate):
        return "its predicate asks for a shape, and the branch that is not taken may not fit the shapes that are there"
    for a, b in zip(site.then_branch.outputs, site.else_branch.outputs, strict=True):
        reason = _differ(a, b)
        if reason is not None:
            return reason
    return next((reason for node in _nodes(site) if (reason := _why_not(node)) is not None), None)


def why_not_run(node: ir.Node) -> str | None:
    """Why ``node`` must not run unasked and unguarded; None where it may."""
    index = RANGED.get(node.op_type, (0, 0))[0]
    value = node.inputs[index] if index and index < len(node.inputs) else None
    if value is not None and value.dtype is not None and value.dtype.is_integer() and constant_of(value) is None:
        return f"{label(node)} may be out of range"
    return _why_not(node)


RANGED: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "MaxUnpool"), (1, 0)),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), (1, 0)),
    **dict.fromkeys(("RoiAlign", "TensorScatter"), (2, 0)),
    "ReverseSequence": (1, 1),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (4, 1)),
    **dict.fromkeys(("Div", "Mod"), (1, 1)),
}
"""Operands that must be in range, and a number that always is: indices, lengths, integer divisors."""


def _nodes(site: BranchSite) -> Iterator[ir.Node]:
    for branch in site.branches:
        yield from nodes_of(branch)


def _differ(a: ir.Value, b: ir.Value) -> str | None:
    if not isinstance(a.type, ir.TensorType) or not isinstance(b.type, ir.TensorType):
        return f"its result '{a.name}' is no tensor"
    if a.dtype is not None and (a.dtype.is_string() or a.dtype.bitwidth < 8):
        return f"its result '{a.name}' has elements of {a.dtype.name.lower()}, between which no Where selects"
    if a.shape is None or b.shape is None:
        unknown = a if a.shape is None else b
        return f"the rank of its result '{unknown.name}' is not known"
    if a.shape.rank() != b.shape.rank() or not all(map(same_dim, a.shape.dims, b.shape.dims)):
        return f"its branches return {_listed(a.shape)} and {_listed(b.shape)}, which are not certainly one shape"
    return None


def _listed(shape: ir.Shape) -> str:
    return "[" + ", ".join("?" if str(d) == "None" else str(d) for d in shape.dims) + "]"


def _why_not(node: ir.Node) -> str | None:
    name = label(node)
    if node.domain not in ("", "ai.onnx"):
        return f"{name} of domain {node.domain} may fail on what a branch that is not taken computes"
    if not is_pure(node) and not subgraphs_of(node):
        return f"{name} draws random numbers"
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    if any(isinstance(v.type, (ir.SequenceType, ir.OptionalType)) for v in values):
        return f"{name} works on a sequence or an optional"
    if node.op_type == "Loop" and trip_count(loop_site(node)).bound is None:
        return f"{name} has no bound, and need not end on what a branch that is not taken computes"
    if node.op_type == "Scan" and not trip_count(loop_site(node)).positive:
        return f"{name} may have nothing to read where its branch is not taken, which the runtime refuses"
    if node.op_type in _NEED_ELEMENTS and not _has_elements(node):
        return f"{name} may find an axis too short where its branch is not taken"
    if node.op_type in _DATA_SHAPED:
        return f"the shape of what {name} gives depends on data"
    for index in _SIZES.get(node.op_type, ()):
        if index < len(node.inputs) and node.inputs[index] is not None and not _is_shape(node.inputs[index]):
            return f"{name} takes a size from data"
    return None


def _has_elements(node: ir.Node) -> bool:
    """Whether the axis that ``node`` reads certainly has elements, and those that a constant index asks for."""
    data, shape = node.inputs[0], node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    if data is None or shape is None:
        return False
    name, default = _NEED_ELEMENTS[node.op_type]
    axis = node.attributes.get_int(name, default) if name else None
    sizes = list(shape.dims) if axis is None else [shape.dims[axis]] if -shape.rank() <= axis < shape.rank() else []
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) < len(sizes) or not all(numbers):
        return False
    index = RANGED.get(node.op_type, (0, 0))[0]
    asked = constant_of(node.inputs[index]) if index else None
    return asked is None or asked.size == 0 or axis is None or _in_range(asked, numbers[0])


def _in_range(index: np.ndarray, size: int) -> bool:
    return bool((index >= -size).all() and (index < size).all())


def _is_shape(value: ir.Value | None) -> bool:
    """Whether ``value`` follows from constants and shapes alone."""
    seen, pending = set[ir.Value](), [value]
    while pending:
        current = pending.pop()
        if current is None or current in seen or constant_of(current) is not None:
            continue
        seen.add(current)
        node = current.producer()
        if node is None or is_loop(node) or is_branch(node):
            return False
        if node.op_type not in ("Shape", "Size"):
            pending += node.inputs
    return True


def _asks_for_shape(predicate: ir.Value) -> bool:
    """Whether a Shape or Size is among what ``predicate`` is computed from, as far as operators show."""
    seen, pending = set[ir.Value](), [predicate]
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or value in seen:
            continue
        seen.add(value)
        if node.op_type in ("Shape", "Size"):
            return True
        if value.dtype in (ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.INT32):
            pending += [v for v in node.inputs if v is not None]
    return False
