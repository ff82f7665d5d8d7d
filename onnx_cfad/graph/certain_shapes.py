"""Takes back what onnx-shape-inference 0.4 says about a shape without being certain of it.

It reads a symbolic dimension as different from 1 and as long enough: Squeeze without axes keeps it, and a Slice of
it is as long as its bounds say. Axes and steps that the run computes are read as if they were not given (Squeeze, Pad,
Slice). A Slice backwards from before the first element begins with that one. Unique along an axis gets the shape of
Unique over all elements, and Compress of a tensor of unknown rank that of Compress over all of them. Split is cut
evenly although sizes are given. Pooling with ceil_mode counts a window that starts outside. Resize by factors rounds
the exact product down, which ONNX Runtime does not. Reshape to a shape of unknown length loses the element type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.dims import Dim
from onnx_cfad.graph.stretches import stretches

Constant = Callable[[ir.Value | None], np.ndarray | None]
Fresh = Callable[[], ir.SymbolicDim]

_TO_END = 2**31 - 1
_POOLS = frozenset(("AveragePool", "MaxPool", "LpPool"))


def keep_certain(node: ir.Node, constant: Constant, fresh: Fresh) -> None:
    """Replaces what is uncertain in the shapes of the outputs of ``node`` by fresh dimensions, or drops a shape.

    Args:
        node: A node of the default domain, with the shapes that inference found on its outputs.
        constant: Gives the value of an input where it is known.
        fresh: Gives a new symbolic dimension.
    """
    data, output = node.inputs[0] if node.inputs else None, node.outputs[0]
    if data is None:
        return
    if node.op_type == "Squeeze":
        output.shape = _squeezed(node, data, constant, fresh)
    elif node.op_type == "Slice" and output.shape is not None and data.shape is not None:
        output.shape = _sliced(node, data.shape, output.shape, constant, fresh)
    elif node.op_type in ("Unique", "Compress") and "axis" in node.attributes:
        output.shape = _chosen(node, data.shape, output.shape, fresh)
    elif node.op_type == "Split" and len(node.inputs) > 1 and node.inputs[1] is not None:
        _split(node, constant(node.inputs[1]), fresh)
    elif _is_of_any_size(node, constant):
        output.shape = None if output.shape is None else ir.Shape([fresh() for _ in output.shape.dims])
    elif node.op_type == "Resize" and output.shape is not None:
        output.shape = _resized(node, output.shape)
    elif node.op_type == "Einsum":
        output.shape = _contracted(node, output.shape, fresh)
    elif node.op_type in _POOLS and node.attributes.get_int("ceil_mode", 0):
        for pooled in node.outputs:  # the second one of MaxPool has the numbers of the elements
            pooled.shape = _pooled(pooled.shape, data.shape, fresh)
    elif node.op_type == "Reshape" and output.type is None:
        output.type = data.type


def _split(node: ir.Node, sizes: np.ndarray | None, fresh: Fresh) -> None:
    """Parts of given sizes are as long as these say, known or not."""
    axis = node.attributes.get_int("axis", 0)
    for position, part in enumerate(node.outputs):
        if part.shape is not None:
            dims = list(part.shape.dims)
            dims[axis] = fresh() if sizes is None else int(sizes.reshape(-1)[position])
            part.shape = ir.Shape(dims)


def _resized(node: ir.Node, found: ir.Shape) -> ir.Shape:
    dims = list(found.dims)
    for stretch in stretches(node) or ():
        if stretch.rounded is not None:
            dims[stretch.axis] = stretch.rounded
    return ir.Shape(dims)


def _contracted(node: ir.Node, found: ir.Shape | None, fresh: Fresh) -> ir.Shape | None:
    """Operands that share an index may have 1 there: a symbol is certain where all operands of an index have it."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    terms, _, result = equation.partition("->")
    if found is None or len(node.inputs) < 2:
        return found
    known: dict[str, set[str]] = {}
    for term, value in zip(terms.split(","), node.inputs, strict=False):
        dims = value.shape.dims if value is not None and value.shape is not None else ()
        for index, dim in zip(term, dims, strict=False):
            known.setdefault(index, set()).add(str(dim))
    plain = "." not in equation and len(result) == found.rank()
    certain = [plain and len(known.get(index, ())) == 1 for index in result] if plain else [False] * found.rank()
    return ir.Shape(
        [d if sure or (isinstance(d, int) and d != 1) else fresh() for d, sure in zip(found.dims, certain, strict=True)]
    )


def _pooled(found: ir.Shape | None, data: ir.Shape | None, fresh: Fresh) -> ir.Shape | None:
    """With ceil_mode the last window must start inside, which the formula for symbols leaves out."""
    if found is None or data is None or data.is_static():
        return found
    return ir.Shape([*found.dims[:2], *(d if isinstance(d, int) else fresh() for d in found.dims[2:])])


def _squeezed(node: ir.Node, data: ir.Value, constant: Constant, fresh: Fresh) -> ir.Shape | None:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    named = None if axes is None else constant(axes)
    if data.shape is None or (named is not None and named.size):
        return node.outputs[0].shape
    if named is not None and 1 in data.shape.dims:
        return None  # it stays as it is in ONNX's inference, and loses all axes of length 1 in ONNX Runtime 1.32
    if axes is None or named is not None:
        return node.outputs[0].shape if all(isinstance(d, int) for d in data.shape.dims) else None
    count = axes.shape[0] if axes.shape is not None and axes.shape.rank() == 1 else None
    if not isinstance(count, int) or not count:
        return None
    return ir.Shape([fresh() for _ in range(data.shape.rank() - count)])


def _is_computed(node: ir.Node, index: int, constant: Constant) -> bool:
    """Whether ``node`` has an input ``index`` that only the run knows."""
    given = node.inputs[index] if len(node.inputs) > index else None
    return given is not None and constant(given) is None


def _sliced(node: ir.Node, whole: ir.Shape, found: ir.Shape, constant: Constant, fresh: Fresh) -> ir.Shape:
    """Dimensions that depend on how long a symbolic one is are unknown, unless no more than its first element is read.

    So an axis of no elements is the one case in which a dimension of 1 does not hold.
    """
    if _is_computed(node, 3, constant):
        return ir.Shape([fresh() for _ in found.dims])
    starts, ends, axes, steps = ([constant(value) for value in node.inputs[1:]] + [None] * 4)[:4]
    if axes is None:
        axes = np.arange(starts.size if starts is not None else found.rank())
    if steps is None and not _is_computed(node, 4, constant):
        steps = np.ones(axes.size, np.int64)
    named = [int(axis) % found.rank() for axis in axes]
    dims = [dim if axis in named else whole[axis] for axis, dim in enumerate(found.dims)]
    for position, axis in enumerate(named):
        if starts is None or ends is None or steps is None:
            certain = steps is not None and (isinstance(whole[axis], int) or not isinstance(dims[axis], int))
            dims[axis] = dims[axis] if certain else fresh()
            continue
        start, end, step = (int(numbers[position]) for numbers in (starts, ends, steps))
        dims[axis] = _slice_length(whole[axis], dims[axis], start, end, step, fresh)
    return ir.Shape(dims)


def _slice_length(whole: Dim, found: Dim, start: int, end: int, step: int, fresh: Fresh) -> Dim:
    """The elements that a Slice takes of an axis of ``whole``, of which inference says ``found``."""
    if step < 0 and end >= _TO_END:
        return fresh()  # none in NumPy; all to the front in ONNX Runtime 1.32
    if isinstance(whole, int):
        start, end = (bound + whole if bound < 0 else bound for bound in (start, end))
        lowest, last = (0, whole) if step > 0 else (-1, whole - 1)
        start, end = min(max(start, 0), last), min(max(end, lowest), last)
        return max(0, -((start - end) // step))
    if step > 0 and end <= -_TO_END:
        return 0
    is_certain = not isinstance(found, int) or (start == 0 and (found == 1 or end >= _TO_END))
    return found if is_certain else fresh()


def _is_of_any_size(node: ir.Node, constant: Constant) -> bool:
    """Whether nothing but the rank of the result is certain."""
    if node.op_type == "Pad":
        return _is_computed(node, 3, constant)
    return node.op_type == "Resize" and node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"


def _chosen(node: ir.Node, whole: ir.Shape | None, found: ir.Shape | None, fresh: Fresh) -> ir.Shape | None:
    """Some slices along an axis."""
    if whole is None or node.op_type == "Compress":
        return None if whole is None else found
    dims = list(whole.dims)
    dims[node.attributes["axis"].as_int()] = fresh()
    return ir.Shape(dims)
