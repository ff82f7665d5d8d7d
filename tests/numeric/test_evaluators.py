"""Which evaluator is chosen, and that its numbers are those of the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_cfad.model import load
from onnx_cfad.numeric import evaluators
from onnx_cfad.numeric.evaluators import Evaluator, choose_evaluator, deviation
from onnx_cfad.runtime import Session
from tests.onnx_text import LOOP, model

ERF_LOOP = """g (float[2] x, int64 trips) => (float[2] y) {
    true = Constant <value = bool {1}> ()
    y = Loop (trips, true, x) <body = body (int64 i, bool going, float[2] s) => (bool again, float[2] next) {
        again = Identity (going)
        next = Erf (s)
    }>
}"""


def chosen(proto: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[Evaluator, dict[str, Any]]:
    expected = Session(proto, threads=1).run(feeds)
    return choose_evaluator(load(proto), feeds, expected, threads=1), expected


def test_onnxruntime_in_float64_where_it_has_kernels() -> None:
    feeds = {
        "x": np.asarray([0.3, -0.2], np.float32),
        "w": np.asarray([0.7, 1.4], np.float32),
        "trips": np.asarray(3),
        "up": np.asarray(False),
    }
    evaluator, expected = chosen(model(LOOP), feeds)
    assert evaluator.name == "float64 in ONNX Runtime"
    assert evaluator.remarks == ()
    found = evaluator.run(feeds)["y"]
    state = feeds["x"].astype(np.float64)
    for _ in range(3):
        state = np.sin(state * feeds["w"].astype(np.float64))
    np.testing.assert_allclose(found, state, rtol=1e-15)
    assert 0 < evaluator.deviation < 1e-6
    np.testing.assert_allclose(found, expected["y"], rtol=1e-6)


def test_reference_evaluator_where_onnxruntime_lacks_a_kernel() -> None:
    feeds = {"x": np.asarray([0.3, -0.2], np.float32), "trips": np.asarray(3)}
    evaluator, _ = chosen(model(ERF_LOOP), feeds)
    assert evaluator.name == "float64 in the reference evaluator"
    assert "Erf" in evaluator.remarks[0]
    assert evaluator.run(feeds)["y"].dtype == np.float64


def test_own_type_where_the_reference_evaluator_would_take_too_long() -> None:
    feeds = {"x": np.asarray([0.3, -0.2], np.float32), "trips": np.asarray(15_000)}
    evaluator, expected = chosen(model(ERF_LOOP), feeds)
    assert evaluator.name == "float32 in ONNX Runtime"
    assert evaluator.epsilon == 2.0**-24
    assert "node executions" in evaluator.remarks[1]
    wide = {**feeds, "x": feeds["x"].astype(np.float64)}
    np.testing.assert_array_equal(evaluator.run(wide)["y"], expected["y"])


def test_own_type_where_float64_takes_another_branch() -> None:
    """1 + 2**-30 is 1 in float32, so that the two types disagree on the predicate."""
    text = """g (float[1] x) => (float[1] y) <float[1] one = {1.0}> {
        more = Add (x, one)
        equal = Equal (more, one)
        only = Squeeze (equal)
        y = If (only) <
            then_branch = up () => (float[1] r) { r = Add (x, one) },
            else_branch = down () => (float[1] q) { q = Neg (x) }
        >
    }"""
    evaluator, _ = chosen(model(text), {"x": np.asarray([2.0**-30], np.float32)})
    assert evaluator.name == "float32 in ONNX Runtime"
    assert all("another path" in remark for remark in evaluator.remarks)


def test_float16_model_is_evaluated_in_float64() -> None:
    proto = model("g (float16[2] x) => (float16[2] y) { y = Tanh (x) }")
    evaluator, _ = chosen(proto, {"x": np.asarray([0.5, 1.5], np.float16)})
    assert evaluator.name == "float64 in ONNX Runtime"
    assert 1e-6 < evaluator.deviation < 1e-3


def test_reference_evaluator_has_all_digits_of_the_error_function() -> None:
    feeds = {"x": np.asarray([0.3, -0.2], np.float32), "trips": np.asarray(1)}
    evaluator, _ = chosen(model(ERF_LOOP), feeds)
    np.testing.assert_allclose(
        evaluator.run(feeds)["y"], [math.erf(np.float32(0.3)), math.erf(np.float32(-0.2))], rtol=1e-15
    )


def test_float64_kernel_that_computes_in_float32_is_not_taken() -> None:
    """ONNX Runtime's Shrink rounds to float32 whatever its type, so that a difference quotient of it is 0."""
    proto = model("g (float[3] x) => (float[3] y) { y = Shrink <lambd = 1.5> (x) }")
    evaluator, _ = chosen(proto, {"x": np.asarray([2, 0, -3], np.float32)})
    assert evaluator.name == "float64 in the reference evaluator"
    assert "computes output 'y' in float32" in evaluator.remarks[0]


ADAM = """<ir_version: 10, opset_import: ["ai.onnx.preview.training": 1]>
g (float r, int64 t, float[1] x, float[2] z, float[1] dx, float[2] dz, float[1] v, float[2] w, float[1] h, float[2] k)
    => (float[1] x1, float[2] z1, float[1] v1, float[2] w1, float[1] h1, float[2] k1) {
    x1, z1, v1, w1, h1, k1 = ai.onnx.preview.training.Adam
        <alpha = 0.9, beta = 0.8, epsilon = 0.1, norm_coefficient = 0.2> (r, t, x, z, dx, dz, v, w, h, k)
}"""


def test_reference_steps_several_tensors_in_float64() -> None:
    """Adam of onnx 1.23 rounds to float32 where there are several, so that a difference quotient of it is 0."""
    rng = np.random.default_rng(0)
    sizes = {"x": 1, "z": 2, "dx": 1, "dz": 2, "v": 1, "w": 2, "h": 1, "k": 2}
    tensors = {name: rng.uniform(0.5, 1, size).astype(np.float32) for name, size in sizes.items()}
    feeds = {"r": np.float32(0.1), "t": np.asarray(3), **tensors}
    exact = {name: array.astype(np.float64) for name, array in feeds.items() if name != "t"}
    alpha, beta, epsilon, decay = (float(np.float32(number)) for number in (0.9, 0.8, 0.1, 0.2))
    rate = exact["r"] * np.sqrt(1 - beta**3) / (1 - alpha**3)
    expected = {}
    for x, v, h in (("x", "v", "h"), ("z", "w", "k")):
        g = decay * exact[x] + exact[f"d{x}"]
        expected[f"{v}1"] = alpha * exact[v] + (1 - alpha) * g
        expected[f"{h}1"] = beta * exact[h] + (1 - beta) * g**2
        expected[f"{x}1"] = exact[x] - rate * expected[f"{v}1"] / (np.sqrt(expected[f"{h}1"]) + epsilon)
    evaluator = choose_evaluator(load(onnx.parser.parse_model(ADAM)), feeds, expected)
    assert evaluator.name == "float64 in the reference evaluator"
    found = evaluator.run(feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-14, err_msg=name)


def test_reference_operator_that_rounds_to_float32_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators.Erf, "_run", lambda _, x: (np.tanh(x).astype(np.float32),))
    feeds = {"x": np.asarray([0.3, -0.2], np.float32), "trips": np.asarray(1)}
    given = {"y": np.tanh(feeds["x"])}
    evaluator = choose_evaluator(load(model(ERF_LOOP)), feeds, given, threads=1)
    assert evaluator.name == "float32 in ONNX Runtime"
    assert "computes output 'y' in float32" in evaluator.remarks[1]


def test_whole_numbers_are_not_taken_for_float32() -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Floor (x) }")
    evaluator, _ = chosen(proto, {"x": np.asarray([2, 0, -3], np.float32)})
    assert evaluator.name == "float64 in ONNX Runtime"


@pytest.mark.parametrize(
    ("found", "conflict"),
    [
        ([1.0, 2.0], None),
        ([1.0 + 1e-5, 2.0], None),
        ([1.1, 2.0], "differs by 0.05"),
        ([np.nan, 2.0], "not finite"),
        ([1.0], "shape"),
    ],
)
def test_deviation(found: list[float], conflict: str | None) -> None:
    result = deviation({"y": np.asarray(found)}, {"y": np.asarray([1.0, 2.0], np.float32), "n": np.asarray(3)})
    assert (result.conflict is None) == (conflict is None)
    assert conflict is None or conflict in str(result.conflict)


def test_zero_outputs_do_not_deviate_by_underflow() -> None:
    assert deviation({"y": np.asarray([1e-9])}, {"y": np.asarray([0.0], np.float16)}).conflict is None
