"""The rules of pooling operators against central differences of the operators in ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import FLOAT, INT64, assert_vjp, node_model, run_ort, run_reference
from tests.rules.forms import Case, case, check, each_form

RNG = np.random.default_rng(0)
SIDES = ("static", "symbolic")


def distinct(*shape: int) -> np.ndarray[Any, Any]:
    """Values at least 0.05 apart, so that no difference of step 0.01 changes which is largest."""
    size = int(np.prod(shape))
    return (RNG.permutation(size).reshape(shape) * 0.05 - size * 0.025 + 0.013).astype(np.float32)


def pool(name: str, op_type: str, shape: tuple[int, ...], *, indices: bool = False, **attributes: Any) -> Case:
    outputs = {"y": FLOAT, **({"indices": INT64} if indices else {})}
    return case(name, op_type, {"x": distinct(*shape)}, outputs=outputs, seeded=("y",), forms=SIDES, **attributes)


MAXIMA = [
    pool("1d", "MaxPool", (2, 3, 7), kernel_shape=[3]),
    pool("1d_indices", "MaxPool", (2, 3, 7), kernel_shape=[3], indices=True, strides=[2], pads=[1, 1]),
    pool("2d_overlapping", "MaxPool", (2, 2, 5, 6), kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    pool("2d_dilated", "MaxPool", (1, 2, 6, 7), kernel_shape=[2, 3], dilations=[2, 2], strides=[1, 2]),
    pool("2d_columns", "MaxPool", (2, 2, 4, 6), kernel_shape=[2, 2], storage_order=1, strides=[2, 2], indices=True),
    pool("2d_ceil", "MaxPool", (1, 2, 5, 6), kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    pool("2d_same_upper", "MaxPool", (1, 2, 5, 6), kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    pool("2d_same_lower", "MaxPool", (1, 2, 5, 6), kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    pool("2d_valid", "MaxPool", (1, 2, 5, 6), kernel_shape=[2, 3], auto_pad="VALID"),
    pool("3d", "MaxPool", (1, 2, 3, 4, 5), kernel_shape=[2, 2, 3], strides=[1, 2, 2], pads=[0, 1, 1, 0, 0, 1]),
    pool("global_1d", "GlobalMaxPool", (2, 3, 5)),
    pool("global_2d", "GlobalMaxPool", (2, 3, 4, 5)),
    pool("global_3d", "GlobalMaxPool", (2, 1, 2, 3, 4)),
]

AVERAGES = [
    pool("1d", "AveragePool", (2, 3, 8), kernel_shape=[3], strides=[2]),
    pool("2d_padded", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]),
    pool("2d_include", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], pads=[1, 0, 2, 1], count_include_pad=1),
    pool("2d_same", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], strides=[2, 3], auto_pad="SAME_UPPER"),
    pool("2d_same_lower", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], strides=[2, 3], auto_pad="SAME_LOWER"),
    pool("2d_valid", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], auto_pad="VALID"),
    pool(
        "2d_same_include", "AveragePool", (1, 2, 5, 6), kernel_shape=[3, 2], auto_pad="SAME_LOWER", count_include_pad=1
    ),
    pool("3d", "AveragePool", (1, 2, 3, 4, 5), kernel_shape=[2, 2, 3], strides=[1, 2, 2], pads=[0, 1, 1, 0, 0, 1]),
    *(
        pool(
            f"1d_{side}_{k}{s}{d}{begin}{end}_ceil{ceil}_include{include}",
            "AveragePool",
            (1, 1, side),
            kernel_shape=[k],
            strides=[s],
            dilations=[d],
            pads=[begin, end],
            ceil_mode=ceil,
            count_include_pad=include,
        )
        for side, (k, s, d), (begin, end), ceil, include in itertools.product(
            (6, 7), ((2, 3, 1), (3, 2, 1), (2, 2, 2)), ((0, 0), (1, 0), (1, 1)), (0, 1), (0, 1)
        )
    ),
    pool("global", "GlobalAveragePool", (2, 3, 4, 5)),
    pool("global_1d", "GlobalAveragePool", (2, 3, 4)),
]

NORMS = [
    pool("2d", "LpPool", (1, 2, 5, 6), kernel_shape=[3, 2], strides=[2, 1]),
    pool("1d_p1", "LpPool", (1, 2, 7), kernel_shape=[3], p=1, pads=[1, 0], strides=[2]),
    pool("2d_p3", "LpPool", (1, 2, 5, 6), kernel_shape=[2, 3], p=3, dilations=[2, 1]),
    pool("1d_ceil", "LpPool", (1, 2, 8), kernel_shape=[3], strides=[3], ceil_mode=1),
    pool("3d_same", "LpPool", (1, 1, 3, 4, 3), kernel_shape=[2, 2, 2], strides=[1, 2, 2], auto_pad="SAME_UPPER"),
    pool("global", "GlobalLpPool", (2, 3, 4)),
    pool("global_p1", "GlobalLpPool", (1, 2, 3, 4), p=1),
    pool("global_p3", "GlobalLpPool", (1, 2, 3, 4), p=3),
]


@each_form(MAXIMA)
def test_maximum(case: Case, form: str) -> None:
    check(case, form)


@each_form(AVERAGES)
def test_average(case: Case, form: str) -> None:
    # onnx's strict shape inference counts a last place that starts in the padding; ONNX Runtime does not
    check(case, form, step=0.1, check="ceil1" not in case.name)


@each_form(NORMS)
def test_norm(case: Case, form: str) -> None:
    check(case, form, step=3e-3, atol=1e-3)


@pytest.mark.parametrize("op_type", ["LpPool", "GlobalLpPool"])
def test_norm_of_zeros_has_gradient_zero(op_type: str) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [2]} if op_type == "LpPool" else {}
    x = np.zeros((1, 1, 4), np.float32)
    model = cfad.vjp(node_model(helper.make_node(op_type, ["x"], ["y"], **attributes), {"x": x}), wrt=["x"]).proto()
    seed = np.ones((1, 1, 3 if attributes else 1), np.float32)
    assert not run_ort(model, {"x": x, "y_grad": seed})["x_grad"].any()


@pytest.mark.parametrize("op_type", ["MaxPool", "GlobalMaxPool"])
def test_a_tie_goes_to_the_first(op_type: str) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3]} if op_type == "MaxPool" else {}
    x = np.asarray([[[1, 2, 2]]], np.float32)
    model = cfad.vjp(node_model(helper.make_node(op_type, ["x"], ["y"], **attributes), {"x": x}), wrt=["x"]).proto()
    found = run_ort(model, {"x": x, "y_grad": np.ones((1, 1, 1), np.float32)})["x_grad"]
    np.testing.assert_array_equal(found, [[[0, 1, 0]]])


@pytest.mark.parametrize("runner", [run_ort, run_reference])
def test_max_pool_in_float64(runner: Any) -> None:
    """ONNX Runtime and the reference evaluator number the selected elements differently."""
    x = distinct(2, 3, 4, 6).astype(np.float64)
    node = helper.make_node("MaxPool", ["x"], ["y", "indices"], kernel_shape=[2, 2], strides=[2, 2])
    outputs = {"y": TensorProto.DOUBLE, "indices": INT64}
    model = cfad.vjp(node_model(node, {"x": x}, outputs=outputs), wrt=["x"], outputs=["y"]).proto()
    seed = RNG.standard_normal((2, 3, 2, 3))
    found = runner(model, {"x": x, "y_grad": seed})["x_grad"]
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    largest = blocks == blocks.max((3, 5), keepdims=True)
    np.testing.assert_array_equal(found, (largest * seed[:, :, :, None, :, None]).reshape(x.shape))


@pytest.mark.parametrize("with_shape", [False, True])
def test_max_unpool(with_shape: bool) -> None:
    feeds = {"x": distinct(1, 2, 3), "i": np.asarray([[[1, 2, 5], [6, 8, 11]]])}
    if with_shape:
        feeds["shape"] = np.asarray([1, 2, 8])
    node = helper.make_node("MaxUnpool", list(feeds), ["y"], kernel_shape=[2], strides=[2])
    assert_vjp(node, feeds, wrt=["x"], check=False)  # shape inference wants a constant shape


@pytest.mark.parametrize("node", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LpPool"])
def test_half_precision(node: str) -> None:
    attributes: dict[str, Any] = {} if node.startswith("Global") else {"kernel_shape": [2], "strides": [1]}
    x = distinct(1, 2, 6).astype(np.float16)
    assert_vjp(helper.make_node(node, ["x"], ["y"], **attributes), {"x": x}, step=2e-2)


@pytest.mark.parametrize("spatial", [(4, 4), ("H", "W")])
@pytest.mark.parametrize("node", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LpPool", "LRN"])
def test_batch_of_none(node: str, spatial: tuple[int | str, ...]) -> None:
    attributes: dict[str, Any] = {"size": 3} if node == "LRN" else {}
    attributes |= {"kernel_shape": [2, 2]} if node in ("MaxPool", "AveragePool", "LpPool") else {}
    length = {"MaxPool": 3, "AveragePool": 3, "LpPool": 3, "LRN": 4}.get(node, 1)
    ports = [("x", ["N", 3, *spatial]), ("y", ["N", 3, *((length, length) if spatial[0] == 4 else ("P", "Q"))])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in ports]
    graph = helper.make_graph([helper.make_node(node, ["x"], ["y"], **attributes)], "none", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    nothing = np.zeros((0, 3, 4, 4), np.float32)
    seed = np.zeros((0, 3, length, length), np.float32)
    assert run_ort(cfad.vjp(model).proto(), {"x": nothing, "y_grad": seed})["x_grad"].shape == nothing.shape
