"""Takes back what onnx-shape-inference 0.4 says about a shape without being certain of it.

It reads a symbolic dimension as different from 1 and as long enough: Squeeze without axes keeps it, and a Slice of
it is as long as its bounds say. Squeeze with computed axes is read as Squeeze without axes. Unique along an axis gets
the shape of Unique over all elements. Split is cut evenly although sizes are given. Pooling with ceil_mode counts a
window that starts outside. Resize by factors rounds the exact product down, which ONNX Runtime does not. Reshape to a
shape of unknown length loses the element type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.stretches import stretches

Constant = Callable[[ir.Value | None], np.ndarray | None]
Fresh = Callable[[], ir.SymbolicDim]

_TO_END = 2**31 - 1
_POOLS = frozenset(("AveragePool", "MaxPool", "LpPool"))


def keep_certain(node: ir.Node, constant: Constant, fresh: Fresh) -> None:
    """Replaces what is uncertain in the shape of the first output of ``node`` by fresh dimensions, or drops the shape.

    Args:
        node: A node of the default domain, with the shape that inference found on its output.
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
    elif node.op_type == "Unique" and "axis" in node.attributes:
        output.shape = _unique(node, data.shape, fresh)
    elif node.op_type == "Split" and len(node.inputs) > 1 and node.inputs[1] is not None:
        _split(node, constant(node.inputs[1]), fresh)
    elif node.op_type == "Resize" and node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        output.shape = None if output.shape is None else ir.Shape([fresh() for _ in output.shape.dims])
    elif node.op_type == "Resize" and output.shape is not None:
        output.shape = _resized(node, output.shape)
    elif node.op_type == "Einsum":
        output.shape = _contracted(node, output.shape, fresh)
    elif node.op_type in _POOLS and node.attributes.get_int("ceil_mode", 0):
        output.shape = _pooled(output.shape, data.shape, fresh)
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
    if data.shape is None or (axes is not None and constant(axes) is not None):
        return node.outputs[0].shape
    if axes is None:
        return node.outputs[0].shape if all(isinstance(d, int) for d in data.shape.dims) else None
    count = axes.shape[0] if axes.shape is not None and axes.shape.rank() == 1 else None
    if not isinstance(count, int):
        return None
    return ir.Shape([fresh() for _ in range(data.shape.rank() - count)])


def _sliced(node: ir.Node, whole: ir.Shape, found: ir.Shape, constant: Constant, fresh: Fresh) -> ir.Shape:
    """Dimensions that depend on how long a symbolic one is are unknown, unless at most one element is read."""
    operands = [constant(value) for value in node.inputs[1:]] + [None] * 3
    starts, ends, axes = operands[:3]
    if axes is None and len(node.inputs) > 3 and node.inputs[3] is not None:
        return ir.Shape([fresh() for _ in found.dims])
    if axes is None:
        count = starts.size if starts is not None else found.rank()
        axes = np.arange(count)
    named = [int(axis) % found.rank() for axis in axes]
    dims = [dim if axis in named else whole[axis] for axis, dim in enumerate(found.dims)]
    for position, axis in enumerate(named):
        dim = dims[axis]
        if isinstance(whole[axis], int) or not isinstance(dim, int) or dim == 1:
            continue
        if starts is not None and ends is not None and starts[position] == 0 and ends[position] >= _TO_END:
            continue
        dims[axis] = fresh()
    return ir.Shape(dims)


def _unique(node: ir.Node, whole: ir.Shape | None, fresh: Fresh) -> ir.Shape | None:
    if whole is None:
        return None
    dims = list(whole.dims)
    dims[node.attributes["axis"].as_int()] = fresh()
    return ir.Shape(dims)
