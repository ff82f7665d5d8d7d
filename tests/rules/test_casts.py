"""Rules of rules/casts.py against closed forms and central differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model, run_ort

RNG = np.random.default_rng(9)
FLOATS: dict[int, type] = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
}


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


@pytest.mark.parametrize("source", FLOATS.values())
@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("like", [False, True])
def test_cast_takes_the_cotangent_back(source: type, target: int, like: bool) -> None:
    feeds = {"x": normal(3).astype(source), "t": np.zeros(1, FLOATS[target])}
    node = (
        helper.make_node("CastLike", ["x", "t"], ["y"]) if like else helper.make_node("Cast", ["x"], ["y"], to=target)
    )
    model = node_model(node, feeds, outputs={"y": target}, dims="symbolic")
    seed = np.array([1.5, -2.0, 0.25], FLOATS[target])
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": seed})["x_grad"]
    assert found.dtype == source
    np.testing.assert_array_equal(found, seed.astype(source))


def test_cast_to_bfloat16_and_back() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    emitted = cfad.vjp(node_model(nodes, {"x": np.zeros(2, np.float32)}), wrt=["x"]).proto()
    seed = np.array([1.0, 1.001], np.float32)
    found = run_ort(emitted, {"x": np.ones(2, np.float32), "y_grad": seed})["x_grad"]
    np.testing.assert_array_equal(found, seed.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_no_derivative_passes_through_an_integer() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["x", "f"], ["y"]),
    ]
    x = np.array([1.5, -2.75])
    found = run_ort(cfad.vjp(node_model(nodes, {"x": x}), wrt=["x"]).proto(), {"x": x, "y_grad": np.ones(2)})["x_grad"]
    np.testing.assert_array_equal(found, [1.0, -2.0])


@pytest.mark.parametrize("inputs", [["x"], ["x", "ratio"], ["x", "", "off"], ["x", "ratio", "off"]])
def test_dropout_in_test_mode_is_the_identity(inputs: list[str]) -> None:
    constants = {"ratio": np.asarray(0.4, np.float32), "off": np.asarray(False)}
    nodes = [helper.make_node("Dropout", inputs, ["d"]), helper.make_node("Mul", ["d", "d"], ["y"])]
    assert_vjp(nodes, {"x": normal(3, 2)}, constants={k: constants[k] for k in constants if k in inputs})


@pytest.mark.parametrize("outputs", [["d"], ["d", "mask"], ["d", ""]])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.6, None])
def test_dropout_drops_the_cotangent_of_the_same_draw(outputs: list[str], computed: bool, ratio: float | None) -> None:
    """Elements are never zero, so that the output shows what was drawn."""
    x = np.abs(normal(40, 5)).astype(np.float32) + 1
    given = (
        {"on": np.asarray(True)} if ratio is None else {"ratio": np.asarray(ratio, np.float32), "on": np.asarray(True)}
    )
    node = helper.make_node("Dropout", ["x", "ratio" if ratio is not None else "", "on"], outputs)
    nodes = [node, helper.make_node("Mul", ["d", "d"], ["y"])]
    feeds = {"x": x, **(given if computed else {})}
    model = node_model(
        nodes, feeds, constants={} if computed else given, outputs={"y": TensorProto.FLOAT}, dims="symbolic"
    )
    emitted = cfad.vjp(model, wrt=["x"]).proto()
    seed = normal(40, 5).astype(np.float32)
    found = run_ort(emitted, {**feeds, "y_grad": seed})
    kept, scale = found["y"] != 0, 1 / (1 - (0.5 if ratio is None else ratio))
    assert kept.all() == (ratio == 0.0)
    np.testing.assert_allclose(found["x_grad"], np.where(kept, 2 * seed * x * scale**2, 0), rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_mode_decided_at_run_time(training: bool) -> None:
    x = np.abs(normal(50)).astype(np.float32) + 1
    feeds = {"x": x, "on": np.asarray(training)}
    model = node_model(helper.make_node("Dropout", ["x", "", "on"], ["y"]), feeds)
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": np.ones(50, np.float32)})
    np.testing.assert_allclose(found["x_grad"], found["y"] / x, rtol=1e-6)
    assert (found["x_grad"] == 1).all() != training


def test_dropout_in_a_loop_uses_the_mask_of_each_iteration() -> None:
    """The carry is multiplied in every iteration by the dropped-out captured tensor."""
    body = helper.make_graph(
        [
            helper.make_node("Dropout", ["x", "", "on"], ["d"]),
            helper.make_node("Add", ["d", "one"], ["factor"]),
            helper.make_node("Mul", ["carry", "factor"], ["next"]),
            helper.make_node("Identity", ["d"], ["drawn"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carry", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("drawn", TensorProto.FLOAT, None),
        ],
    )
    x = np.abs(normal(6)).astype(np.float32) + 0.5
    feeds = {"x": x, "z": np.ones(6, np.float32)}
    constants = {"on": np.asarray(True), "one": np.asarray(1, np.float32), "trips": np.asarray(4)}
    outputs = {"y": TensorProto.FLOAT, "ds": TensorProto.FLOAT}
    node = helper.make_node("Loop", ["trips", "", "z"], list(outputs), body=body)
    model = node_model(node, feeds, constants=constants, outputs=outputs)
    found = run_ort(cfad.vjp(model, wrt=["x", "z"], outputs=["y"]).proto(), {**feeds, "y_grad": np.ones(6, np.float32)})
    drawn = found["ds"].astype(np.float64)
    assert len({tuple(row) for row in drawn != 0}) > 1
    np.testing.assert_allclose(found["z_grad"], np.prod(drawn + 1, axis=0), rtol=1e-5)
    slope = np.sum([np.prod(np.delete(drawn + 1, i, 0), 0) * 2 * (drawn[i] != 0) for i in range(4)], axis=0)
    np.testing.assert_allclose(found["x_grad"], slope, rtol=1e-5)


SCALES = [
    pytest.param(np.asarray(0.5, np.float32), {}, id="one"),
    pytest.param(np.array([0.5, 0.25, 2.0], np.float32), {"axis": 1}, id="axis"),
    pytest.param(np.array([0.5, 0.25, 2.0, 1.0], np.float32), {"axis": -1}, id="last-axis"),
    pytest.param(np.array([0.5, 0.25], np.float32), {"axis": 0}, id="first-axis"),
    pytest.param(normal(2, 2, 4).astype(np.float32), {"axis": 1, "block_size": 2}, id="blocks"),
    pytest.param(normal(2, 3, 2).astype(np.float32), {"axis": -1, "block_size": 2}, id="whole-blocks"),
]


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("scale", "attributes"), SCALES)
def test_dequantise_by_its_scale(scale: np.ndarray, attributes: dict[str, Any], zero: bool, dims: str) -> None:
    x = RNG.integers(0, 255, (2, 3, 4)).astype(np.uint8)
    feeds = {"x": x, "s": np.asarray(scale)}
    if zero:
        feeds["z"] = RNG.integers(0, 255, np.shape(scale)).astype(np.uint8)
    node = helper.make_node("DequantizeLinear", list(feeds), ["y"], **attributes)
    assert_vjp(node, feeds, wrt=["s"], dims=dims, rtol=1e-3)


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
def test_scale_of_dynamic_quantisation(shift: float, dims: str) -> None:
    """It spans the elements and 0, so that an end that is 0 has no share."""
    x = (normal(3, 4) + shift).astype(np.float32)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    assert_vjp(node_model(node, {"x": x}, outputs=outputs, dims=dims), {"x": x}, outputs=["s"], rtol=1e-2)


def test_scale_of_dynamic_quantisation_shares_a_tie() -> None:
    x = np.asarray([2, -1, 2, -3, 0], np.float32)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    outputs = {"q": TensorProto.UINT8, "s": TensorProto.FLOAT, "z": TensorProto.UINT8}
    gradient = cfad.vjp(node_model(node, {"x": x}, outputs=outputs))
    for array, slope in ((x, [0.5, 0, 0.5, -1, 0]), (0 * x, [0, 0, 0, 0, 0])):
        found = run_ort(gradient.proto(), {"x": array, "s_grad": np.asarray(255, np.float32)})
        np.testing.assert_allclose(found["x_grad"], slope, rtol=1e-6)
