"""The Indices of a MaxPool, which TVM does not give: the gradient of a MaxPool scatters by them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_cfad.rewriters.decompose_operators import Decomposition, input_of, static_shape
from onnx_cfad.rewriters.recorder import Recorder


def _max_pool(op: Recorder, node: ir.Node) -> list[ir.Value] | None:
    """Every window's elements in a row, of which ArgMax finds the first largest; the numbers of places are constant."""
    x, shapes = input_of(node, 0), (static_shape(input_of(node, 0)), static_shape(node.outputs[0]))
    if len(node.outputs) < 2 or not node.outputs[1].name or shapes[0] is None or shapes[1] is None:
        return None
    shape, out = shapes[0], shapes[1]
    coordinates, inside = _taps(node, shape[2:], out[2:])
    plane = math.prod(shape[2:])
    column_major = bool(node.attributes.get_int("storage_order", 0))
    numbers = _numbers(coordinates, shape[2:], column_major=column_major)
    places = _numbers(coordinates, shape[2:], column_major=False)
    windows = op.Gather(op.Reshape(x, op.ints(*shape[:2], plane)), op.constant(places.reshape(-1)), axis=2)
    windows = op.Reshape(windows, op.ints(*shape[:2], *places.shape))
    if not inside.all():
        windows = op.Where(op.constant(inside), windows, op.constant(_least(x), x.dtype))
    best = op.ArgMax(windows, axis=2, keepdims=1)
    best.type = ir.TensorType(ir.DataType.INT64)
    every = np.broadcast_to(numbers, (*shape[:2], *numbers.shape))
    planes = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1, 1) * plane
    indices = op.GatherElements(op.constant(every + planes), best, axis=2)
    kept = {k: a.value for k, a in node.attributes.items() if k != "storage_order"}
    return [op.MaxPool(x, **kept), op.Reshape(indices, op.ints(*out))]


def _taps(node: ir.Node, sizes: tuple[int, ...], outs: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Where each tap of the kernel lies for each result [axis, tap, result], and which are inside [tap, result]."""
    named = node.attributes
    kernel = list(named["kernel_shape"].as_ints())
    strides, dilations = (list(named.get_ints(key, ())) or [1] * len(kernel) for key in ("strides", "dilations"))
    begins = list(named.get_ints("pads", ()))[: len(kernel)] or [0] * len(kernel)
    mode = named.get_string("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        spans = zip(outs, strides, kernel, dilations, sizes, strict=True)
        totals = [max((o - 1) * s + (k - 1) * d + 1 - size, 0) for o, s, k, d, size in spans]
        begins = [total - total // 2 if mode == "SAME_LOWER" else total // 2 for total in totals]
    taps = np.indices(kernel).reshape(len(kernel), -1, 1) * np.reshape(dilations, (-1, 1, 1))
    starts = np.indices(outs).reshape(len(kernel), 1, -1) * np.reshape(strides, (-1, 1, 1))
    coordinates = starts + taps - np.reshape(begins, (-1, 1, 1))
    inside = (coordinates >= 0) & (coordinates < np.reshape(sizes, (-1, 1, 1)))
    return coordinates, np.logical_and.reduce(inside, axis=0)


def _numbers(coordinates: np.ndarray, sizes: tuple[int, ...], *, column_major: bool) -> np.ndarray:
    """The place of each tap in its plane, counted along the last axis first, or along the first; 0 where outside."""
    steps = [math.prod(sizes[:a]) if column_major else math.prod(sizes[a + 1 :]) for a in range(len(sizes))]
    inner = np.clip(coordinates, 0, np.reshape(sizes, (-1, 1, 1)) - 1)
    return (inner * np.reshape(steps, (-1, 1, 1))).sum(0)


def _least(x: ir.Value) -> float:
    assert x.dtype is not None, "types have been inferred"
    return -np.inf if x.dtype.is_floating_point() else float(np.iinfo(x.dtype.numpy()).min)


MAX_POOL: dict[str, Decomposition] = {"MaxPool": _max_pool}
