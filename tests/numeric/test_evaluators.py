"""Which evaluator is chosen, and that its numbers are those of the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_cfad.model import load
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
