"""What TVM's importers lack or compute wrongly, written in operators that they have right.

Found by running every node test of onnx through both, and by the gradients of this project's models; the tests run
each decomposition against what it replaces.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_cfad.rewriters.decompose_operators import (
    Decomposition,
    input_of,
    known,
    optional_input,
    rank_of,
    static_shape,
)
from onnx_cfad.rewriters.recorder import Recorder


def gelu(op: Recorder, node: ir.Node) -> ir.Value | None:
    """The tanh form, which Relay computes as the exact one."""
    if node.attributes.get_string("approximate", "none") != "tanh":
        return None
    x = input_of(node, 0)
    inner = op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
    return op.Mul(op.Mul(x, 0.5), op.Add(op.Tanh(inner), 1.0))


def batch_normalization(op: Recorder, node: ir.Node) -> list[ir.Value] | None:
    """The training form, which Relay computes as if it were not, in one pass over each axis."""
    rank = rank_of(input_of(node, 0))
    if not node.attributes.get_int("training_mode", 0) or rank is None:
        return None
    x, scale, bias, mean, variance = (input_of(node, position) for position in range(5))
    axes = [axis for axis in range(rank) if axis != 1]
    column = op.ints(-1, *(1 for _ in range(rank - 2)))
    own_mean = _mean(op, x, axes)
    centred = op.Sub(x, own_mean)
    own_variance = _mean(op, op.Mul(centred, centred), axes)
    epsilon, momentum = node.attributes.get_float("epsilon", 1e-5), node.attributes.get_float("momentum", 0.9)
    normal = op.Div(centred, op.Sqrt(op.Add(own_variance, epsilon)))
    y = op.Add(op.Mul(normal, op.Reshape(scale, column)), op.Reshape(bias, column))
    results = [y]
    for old, new in ((mean, own_mean), (variance, own_variance)):
        flat = op.Reshape(new, op.ints(-1))
        results.append(op.Add(op.Mul(old, momentum), op.Mul(flat, 1 - momentum)))
    return results[: len(node.outputs)]


def _mean(op: Recorder, x: ir.Value, axes: list[int]) -> ir.Value:
    for axis in reversed(axes):
        x = op.ReduceMean(x, op.ints(axis), keepdims=1)
    return x


def scatter_elements(op: Recorder, node: ir.Node) -> ir.Value | None:
    """Without ``reduction = "none"``, which is the default, and which Relay does not know by name."""
    if node.attributes.get_string("reduction", "") != "none":
        return None
    return getattr(op, node.op_type)(*node.inputs, axis=node.attributes.get_int("axis", 0))


def scatter_nd(op: Recorder, node: ir.Node) -> ir.Value | None:
    """As for ScatterElements."""
    if node.attributes.get_string("reduction", "") != "none":
        return None
    return op.ScatterND(*node.inputs)


def scatter_row(op: Recorder, node: ir.Node) -> ir.Value | None:
    """One row of a tensor in the place of another: a choice for each element, which is fused with what is around it.

    Relax's own writes one row after the other, in one thread of a GPU, between buffers whose offset is an argument.
    """
    data, place, row = (input_of(node, k) for k in range(3))
    plain = node.attributes.get_string("reduction", "none") == "none"
    one = place.shape is not None and place.shape.dims == (1, 1)
    count = None if data.shape is None else data.shape[0]
    if not plain or not one or data.shape is None or not isinstance(count, int):
        return None
    others = [1] * (data.shape.rank() - 1)
    index = op.Reshape(place, op.ints(1, *others))
    index = op.Where(op.Less(index, op.ints(0)), op.Add(index, op.ints(count)), index)
    numbers = op.constant(np.arange(count).reshape(count, *others))
    return op.Where(op.Equal(numbers, index), row, data)


def pad(op: Recorder, node: ir.Node) -> ir.Value | None:
    """A width for every axis, where only some are named."""
    axes = known(optional_input(node, 3))
    widths, rank = known(node.inputs[1]), rank_of(input_of(node, 0))
    if optional_input(node, 3) is None or axes is None or widths is None or rank is None:
        return None
    every = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        every[int(axis) % rank] = int(widths[position])
        every[int(axis) % rank + rank] = int(widths[position + len(axes)])
    mode = node.attributes.get_string("mode", "constant")
    return op.Pad(node.inputs[0], op.ints(*every), optional_input(node, 2), mode=mode)


def dropout(op: Recorder, node: ir.Node) -> list[ir.Value] | None:
    """Outside of training: a copy, and a mask of ones."""
    training = optional_input(node, 2)
    flag = known(training)
    if training is not None and (flag is None or flag[0]):
        return None
    x = input_of(node, 0)
    results = [op.Identity(x)]
    if len(node.outputs) > 1:
        results.append(op.Expand(op.constant(np.array(True)), op.Shape(x)))
    return results


def conv_transpose(op: Recorder, node: ir.Node) -> ir.Value | None:
    """Dilation put into the kernel, as zeros between its taps."""
    dilations = list(node.attributes.get_ints("dilations", ()))
    shape = static_shape(input_of(node, 1))
    if not any(d != 1 for d in dilations) or shape is None:
        return None
    kernel, sizes = input_of(node, 1), list(shape)
    for axis, dilation in enumerate(dilations, start=2):
        if dilation == 1:
            continue
        spread = op.Reshape(kernel, op.ints(*sizes[: axis + 1], 1, *sizes[axis + 1 :]))
        widths = [0] * (2 * len(sizes) + 2)
        widths[len(sizes) + 1 + axis + 1] = dilation - 1
        spread = op.Pad(spread, op.ints(*widths))
        sizes[axis] *= dilation
        joined = op.Reshape(spread, op.ints(*sizes))
        sizes[axis] -= dilation - 1
        kernel = op.Slice(joined, op.ints(0), op.ints(sizes[axis]), op.ints(axis))
    kept = {k: a.value for k, a in node.attributes.items() if k not in {"dilations", "kernel_shape"}}
    return op.ConvTranspose(node.inputs[0], kernel, *node.inputs[2:], kernel_shape=sizes[2:], **kept)


def size(op: Recorder, node: ir.Node) -> ir.Value:
    """The product of the dimensions: Relax cannot ask for the size of a shape."""
    return op.ReduceProd(op.Shape(input_of(node, 0)), op.ints(0), keepdims=0)


def mean(op: Recorder, node: ir.Node) -> ir.Value:
    """The sum over the number of inputs."""
    total = input_of(node, 0)
    for value in node.inputs[1:]:
        total = op.Add(total, value)
    return op.Div(total, float(len(node.inputs)))


def constant(op: Recorder, node: ir.Node) -> ir.Value | None:
    """A tensor: Relay does not know numbers and lists of them."""
    tensor = ir.convenience.get_const_tensor(node.outputs[0]) if "value" not in node.attributes else None
    return None if tensor is None else op.constant(tensor.numpy())


def shape(op: Recorder, node: ir.Node) -> ir.Value | None:
    """A part of a shape as a slice of all of it: Relay does not know of ``start`` and ``end``."""
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    if start == 0 and end is None:
        return None
    whole = op.Shape(input_of(node, 0))
    return op.Slice(whole, op.ints(start), op.ints(2**62 if end is None else end), op.ints(0))


def mod(op: Recorder, node: ir.Node) -> ir.Value | None:
    """The remainder of several integers by a division: LLVM 22 refuses the vectors that Relay makes of it."""
    a, b, made = input_of(node, 0), input_of(node, 1), node.outputs[0]
    whole = a.dtype in (ir.DataType.INT64, ir.DataType.INT32) and not node.attributes.get_int("fmod", 0)
    if not whole or (made.shape is not None and all(d == 1 for d in made.shape)):
        return None
    rest = op.Sub(a, op.Mul(op.Div(a, b), b))
    turned = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(rest, 0), op.Less(b, 0)))
    return op.Where(turned, op.Add(rest, b), rest)


RELAY: dict[str, Decomposition] = {
    "Mod": mod,
    "Shape": shape,
    "Constant": constant,
    "Gelu": gelu,
    "BatchNormalization": batch_normalization,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Pad": pad,
    "Dropout": dropout,
    "ConvTranspose": conv_transpose,
}

RELAX: dict[str, Decomposition] = {
    "BatchNormalization": batch_normalization,
    "ScatterND": scatter_row,
    "Pad": pad,
    "Dropout": dropout,
    "ConvTranspose": conv_transpose,
}
