"""Neural-network operators in the body of a Loop: values have no declared shapes and may change size every trip."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.oracle import FLOAT, INT64, assert_vjp

RNG = np.random.default_rng(0)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def constant(name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def check(nodes: list[onnx.NodeProto], x: np.ndarray[Any, Any], *, step: float = 3e-3, **weights: Any) -> None:
    """Asserts the gradient of three trips of ``nodes``, from the carry "c" to its next value "next"."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes_on"]), *nodes],
        "body",
        [scalar("i", INT64, []), scalar("going", onnx.TensorProto.BOOL, []), scalar("c", FLOAT, None)],
        [scalar("goes_on", onnx.TensorProto.BOOL, []), scalar("next", FLOAT, None)],
    )
    inputs = [scalar("x", FLOAT, [f"d{axis}" for axis in range(x.ndim)]), scalar("trips", INT64, [])]
    inputs += [scalar(name, FLOAT, list(a.shape)) for name, a in weights.items()]
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "test", inputs, [scalar("y", FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": x, "trips": np.asarray(3), **weights}
    assert_vjp(model, feeds, wrt=["x", *weights], step=step, atol=2e-3)


def test_convolution_with_bias() -> None:
    nodes = [helper.make_node("Conv", ["c", "w", "b"], ["z"], pads=[1, 1]), helper.make_node("Tanh", ["z"], ["next"])]
    check(nodes, normal(2, 3, 6), w=normal(3, 3, 3), b=normal(3))


def test_convolution_there_and_back() -> None:
    nodes = [
        helper.make_node("Conv", ["c", "w"], ["z"], strides=[2]),
        helper.make_node("ConvTranspose", ["z", "w"], ["u"], strides=[2]),
        helper.make_node("Tanh", ["u"], ["next"]),
    ]
    check(nodes, normal(2, 3, 7), w=normal(3, 3, 3))


@pytest.mark.parametrize(
    ("length", "attributes"), [(12, {}), (25, {"strides": [2], "auto_pad": "SAME_UPPER"})], ids=["valid", "halved"]
)
def test_convolution_that_shrinks_the_carry(length: int, attributes: dict[str, Any]) -> None:
    nodes = [helper.make_node("Conv", ["c", "w"], ["z"], **attributes), helper.make_node("Tanh", ["z"], ["next"])]
    check(nodes, normal(2, 3, length), w=normal(3, 3, 3))


def test_pool_and_resize() -> None:
    nodes = [
        constant("scales", np.asarray([1, 1, 2, 2], np.float32)),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["p", "", "scales"], ["u"]),
        helper.make_node("Mul", ["u", "w"], ["q"]),
        helper.make_node("Add", ["q", "c"], ["next"]),
    ]
    check(nodes, normal(1, 2, 4, 4) * 10, step=1e-3, w=normal(1, 2, 4, 4))


def test_average_that_shrinks_the_carry() -> None:
    nodes = [
        helper.make_node("AveragePool", ["c"], ["p"], kernel_shape=[3], strides=[2], pads=[1, 1]),
        helper.make_node("Mul", ["p", "w"], ["next"]),
    ]
    check(nodes, normal(1, 2, 17), w=normal(1, 2, 1))


@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_layer(op_type: str) -> None:
    nodes = [
        constant("axes", [1]),
        helper.make_node(op_type, ["c", "w", "r", "b"], ["y_all", "y_last"], hidden_size=3),
        helper.make_node("Squeeze", ["y_all", "axes"], ["next"]),
    ]
    g = GATES[op_type]
    check(nodes, normal(4, 2, 3), w=normal(1, g * 3, 3), r=normal(1, g * 3, 3), b=normal(1, 2 * g * 3))


@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_cell_without_its_sequence_output(op_type: str) -> None:
    nodes = [
        constant("axes", [0]),
        helper.make_node("Unsqueeze", ["c", "axes"], ["step"]),
        helper.make_node(op_type, ["step", "w", "r", "b"], ["", "y_last"], hidden_size=3),
        helper.make_node("Squeeze", ["y_last", "axes"], ["next"]),
    ]
    g = GATES[op_type]
    check(nodes, normal(2, 3), w=normal(1, g * 3, 3), r=normal(1, g * 3, 3), b=normal(1, 2 * g * 3))
