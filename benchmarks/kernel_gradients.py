# Claim: of the ways to write the gradient of a convolution by its kernel in standard operators, one Conv whose places
# are taps and channels takes at most 1.15 times the processor time of the fastest, and 1.35 times that of the forward
# convolution. It has six nodes, those that move data among them.
"""Forms of the gradient of a convolution by its kernel, each a model of its own, beside the forward convolution."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import machine
import numpy as np
import onnx
import onnxruntime as ort
from meter import Bench
from onnx import TensorProto, helper, numpy_helper

SIZES = ((4, 16, 16, 3), (8, 32, 16, 3), (4, 64, 14, 3))
"""Images, channels (in and out), height and width, taps of an axis."""
OWN = "one Conv over taps and channels"
ROUNDS, RUNS = 6, 20

Form = tuple[list[Any], dict[str, Any]]


def main() -> None:
    bench = Bench("kernel_gradients")
    for size in SIZES:
        _compare(bench, size)
    bench.finish()


def _compare(bench: Bench, size: tuple[int, int, int, int]) -> None:
    images, channels, side, taps = size
    rng = np.random.default_rng(0)
    signal, kernel = [images, channels, side, side], [channels, channels, taps, taps]
    feeds = {"x": rng.standard_normal(signal), "ct": rng.standard_normal(signal), "w": rng.standard_normal(kernel)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    pads = [taps // 2] * 4
    forward = ([helper.make_node("Conv", ["x", "w"], ["y"], pads=pads)], {})
    models = {"forward": _model(forward, feeds, signal)}
    models |= {name: _model(form(*size), feeds, kernel) for name, form in FORMS.items()}
    sessions = {name: _session(model) for name, model in models.items()}
    expected = sessions["one Conv over the batch"].run(None, {name: feeds[name] for name in ("x", "ct")})[0]
    seconds = dict.fromkeys(models, float("inf"))
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            values = {port.name: ort.OrtValue.ortvalue_from_numpy(feeds[port.name]) for port in session.get_inputs()}
            found = session.run_with_ort_values(["y"], values)[0].numpy()
            if name != "forward":
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
            started = time.process_time()
            for _ in range(RUNS):
                session.run_with_ort_values(["y"], values)
            seconds[name] = min(seconds[name], (time.process_time() - started) / RUNS)
    case = f"{images} images, {channels} channels, {side} x {side} places, {taps} x {taps} taps"
    for name, model in models.items():
        nodes = machine.count_nodes(model.graph)
        bench.report({"case": case, "form": name, "nodes": nodes, "times_forward": seconds[name] / seconds["forward"]})
    least = min(FORMS, key=seconds.__getitem__)
    own = seconds[OWN]
    bench.claim(f"{case}: {OWN}, in units of the fastest form ({least})", own / seconds[least], at_most=1.15)
    bench.claim(f"{case}: {OWN}, times the forward convolution", own / seconds["forward"], at_most=1.35)


def _model(form: Form, feeds: dict[str, Any], result: list[int]) -> onnx.ModelProto:
    nodes, constants = form
    read = {name for node in nodes for name in node.input}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in feeds.items()
        if name in read or any(name in n.input for node in nodes for a in node.attribute for n in a.g.node)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, result)
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "form", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _one_conv(images: int, channels: int, side: int, taps: int) -> Form:
    del images, channels, side
    swap = [1, 0, 2, 3]
    return [
        helper.make_node("Transpose", ["x"], ["xt"], perm=swap),
        helper.make_node("Transpose", ["ct"], ["c"], perm=swap),
        helper.make_node("Conv", ["xt", "c"], ["r"], pads=[taps // 2] * 4),
        helper.make_node("Transpose", ["r"], ["y"], perm=swap),
    ], {}


def _channels_as_places(images: int, channels: int, side: int, taps: int) -> Form:
    """Channels are one more spatial axis, along which the kernel has one element: nothing but ``ct`` is transposed."""
    del images, channels, side
    half = taps // 2
    return [
        helper.make_node("Unsqueeze", ["x", "first"], ["xs"]),
        helper.make_node("Transpose", ["ct"], ["c"], perm=[1, 0, 2, 3]),
        helper.make_node("Unsqueeze", ["c", "third"], ["cs"]),
        helper.make_node("Conv", ["xs", "cs"], ["r"], pads=[0, half, half] * 2),
        helper.make_node("Squeeze", ["r", "first"], ["y"]),
    ], {"first": np.array([0]), "third": np.array([2])}


def _taps_and_channels(images: int, channels: int, side: int, taps: int) -> Form:
    """Channels follow the places along one axis; a dilation of as many channels goes from one place to the next."""
    half = taps // 2
    return [
        helper.make_node("Transpose", ["x"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["last", "signal"], ["xs"]),
        helper.make_node("Transpose", ["ct"], ["c"], perm=[1, 0, 2, 3]),
        helper.make_node("Conv", ["xs", "c"], ["r"], dilations=[1, channels], pads=[half, half * channels] * 2),
        helper.make_node("Reshape", ["r", "shape"], ["kernel"]),
        helper.make_node("Transpose", ["kernel"], ["y"], perm=[0, 3, 1, 2]),
    ], {
        "signal": np.array([1, images, side, side * channels]),
        "shape": np.array([channels, taps, taps, channels]),
    }  # fmt: skip


def _taps(side: int, taps: int) -> dict[str, Any]:
    """Where each tap reads in the padded signal, which has its channels last."""
    starts = np.array([[a, b] for a in range(taps) for b in range(taps)])
    before = [0, taps // 2, taps // 2, 0]
    return {"starts": starts, "ends": starts + side, "pad": np.array(before * 2), "axes": np.array([1, 2])}


def _scan(step: list[Any], before: list[Any], channels: int, constants: dict[str, Any]) -> Form:
    """One matrix [M, C] for each tap, by ``step`` from the slice ``read``, stacked and turned into the kernel."""
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in ("s", "e")]
    result = helper.make_tensor_value_info("p", TensorProto.FLOAT, [channels, channels])
    read = helper.make_node("Slice", ["padded", "s", "e", "axes"], ["read"])
    body = helper.make_graph([read, *step], "taps", ends, [result])
    return [
        helper.make_node("Transpose", ["x"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Pad", ["last", "pad"], ["padded"]),
        *before,
        helper.make_node("Scan", ["starts", "ends"], ["products"], body=body, num_scan_inputs=2),
        helper.make_node("Transpose", ["products"], ["kernel"], perm=[1, 2, 0]),
        helper.make_node("Reshape", ["kernel", "shape"], ["y"]),
    ], constants


def _scan_of_products(images: int, channels: int, side: int, taps: int) -> Form:
    del images
    shapes = {"rows": np.array([-1, channels]), "columns": np.array([channels, -1])}
    shapes["shape"] = np.array([channels, channels, taps, taps])
    step = [
        helper.make_node("Reshape", ["read", "rows"], ["m"]),
        helper.make_node("MatMul", ["flat", "m"], ["p"]),
    ]
    before = [
        helper.make_node("Transpose", ["ct"], ["c"], perm=[1, 0, 2, 3]),
        helper.make_node("Reshape", ["c", "columns"], ["flat"]),
    ]
    return _scan(step, before, channels, {**shapes, **_taps(side, taps)})


def _scan_of_einsums(images: int, channels: int, side: int, taps: int) -> Form:
    del images
    step = [helper.make_node("Einsum", ["ct", "read"], ["p"], equation="nmhw,nhwc->mc")]
    return _scan(step, [], channels, {"shape": np.array([channels, channels, taps, taps]), **_taps(side, taps)})


def _gather(images: int, channels: int, side: int, taps: int) -> Form:
    half, wide = taps // 2, side + 2 * (taps // 2)
    offsets = [(a, b) for a in range(taps) for b in range(taps)]
    index = [[(i + a) * wide + j + b for i in range(side) for j in range(side)] for a, b in offsets]
    return [
        helper.make_node("Transpose", ["x"], ["last"], perm=[2, 3, 0, 1]),
        helper.make_node("Pad", ["last", "pad"], ["padded"]),
        helper.make_node("Reshape", ["padded", "places"], ["rows"]),
        helper.make_node("Gather", ["rows", "index"], ["all"]),
        helper.make_node("Reshape", ["all", "matrices"], ["m"]),
        helper.make_node("Transpose", ["ct"], ["c"], perm=[1, 2, 3, 0]),
        helper.make_node("Reshape", ["c", "columns"], ["flat"]),
        helper.make_node("MatMul", ["flat", "m"], ["products"]),
        helper.make_node("Transpose", ["products"], ["kernel"], perm=[1, 2, 0]),
        helper.make_node("Reshape", ["kernel", "shape"], ["y"]),
    ], {
        "pad": np.array([half, half, 0, 0] * 2),
        "index": np.array(index),
        "places": np.array([wide * wide, images * channels]),
        "matrices": np.array([taps * taps, side * side * images, channels]),
        "columns": np.array([channels, -1]),
        "shape": np.array([channels, channels, taps, taps]),
    }  # fmt: skip


def _unit_kernels(images: int, channels: int, side: int, taps: int) -> Form:
    units = np.eye(taps * taps, dtype=np.float32).reshape(taps * taps, 1, taps, taps)
    return [
        helper.make_node("Conv", ["x", "units"], ["all"], pads=[taps // 2] * 4, group=channels),
        helper.make_node("Reshape", ["all", "rows"], ["m"]),
        helper.make_node("Transpose", ["m"], ["mt"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["ct", "columns"], ["c"]),
        helper.make_node("MatMul", ["c", "mt"], ["products"]),
        helper.make_node("ReduceSum", ["products", "batch"], ["kernel"], keepdims=0),
        helper.make_node("Reshape", ["kernel", "shape"], ["y"]),
    ], {
        "units": np.tile(units, (channels, 1, 1, 1)),
        "rows": np.array([images, channels * taps * taps, side * side]),
        "columns": np.array([images, channels, side * side]),
        "batch": np.array([0]),
        "shape": np.array([channels, channels, taps, taps]),
    }  # fmt: skip


FORMS: dict[str, Callable[[int, int, int, int], Form]] = {
    "one Conv over the batch": _one_conv,
    "one Conv over the batch, channels as places": _channels_as_places,
    OWN: _taps_and_channels,
    "products in a Scan": _scan_of_products,
    "Einsum in a Scan": _scan_of_einsums,
    "one Gather of all taps": _gather,
    "unit kernels and one product": _unit_kernels,
}


if __name__ == "__main__":
    main()
