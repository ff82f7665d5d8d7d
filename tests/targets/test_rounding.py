"""Differences that are rounding, and those that are not: float64 decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_cfad.model import load
from onnx_cfad.runtime import Session
from onnx_cfad.targets.rounding import rounding_notes
from tests.graph.reading import parsed
from tests.rewriters.test_expand_recurrent import recurrent

CANCELS = "(float[64] x) => (float y) { s = Sin (x)  n = Neg (s)  d = Concat <axis = 0> (s, n)  y = ReduceSum <keepdims = 0> (d) }"  # noqa: E501
CHAOTIC = """(float[4] x) => (float[4] y) <int64 n = {16}> {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[4] h) => (bool go, float[4] next) {
        go = Identity (on)  four = Constant <value_float = 4.0> ()  q = Mul (h, h)  d = Sub (h, q)  next = Mul (d, four)
    }>
}"""


def test_exact_value_is_zero() -> None:
    model, feeds = parsed(CANCELS), {"x": np.linspace(0.1, 9, 64, dtype=np.float32)}
    reference = {"y": np.float32(-3e-7)}
    (note,) = rounding_notes(model, feeds, {"y": np.float32(4e-7)}, reference) or []
    assert "output 'y' differs from ONNX Runtime by 2.3e+00, which is rounding" in note
    assert rounding_notes(model, feeds, {"y": np.float32(4e-6)}, reference) is None


def test_loop_makes_small_errors_large() -> None:
    model, feeds = parsed(CHAOTIC), {"x": np.array([0.1, 0.3, 0.6, 0.8], np.float32)}
    reference = Session(model, threads=1).run(feeds)
    exact = np.array(feeds["x"], np.float64)
    for _ in range(16):
        exact = 4 * (exact - exact * exact)
    distance = np.abs(reference["y"] - exact).max()
    assert distance > 1e-5, "the errors have grown"
    near, far = (np.float32(exact + factor * distance) for factor in (2, 8))
    assert rounding_notes(model, feeds, {"y": near}, reference)
    assert rounding_notes(model, feeds, {"y": far}, reference) is None


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([0.1, 0.2, 0.3, np.nan], np.float32),
        np.array([0.1, 0.2, 0.3], np.float32),
        np.array([0.1, 0.2, 0.3, 0.4], np.float64),
    ],
)
def test_other_shapes_types_and_nan_are_no_rounding(wrong: Any) -> None:
    model, feeds = parsed(CHAOTIC), {"x": np.array([0.1, 0.3, 0.6, 0.8], np.float32)}
    assert rounding_notes(model, feeds, {"y": wrong}, Session(model).run(feeds)) is None


def test_small_error_of_a_well_conditioned_model_is_no_rounding() -> None:
    proto, feeds = recurrent("LSTM", "bidirectional", ("b", "h"))  # ONNX Runtime has no kernel for float64
    reference = Session(proto, threads=1).run(feeds)
    wrong = {name: value * np.float32(1 + 1e-4) for name, value in reference.items()}
    assert rounding_notes(load(proto), feeds, wrong, reference) is None
    assert rounding_notes(load(proto), feeds, reference, reference) == []


SINES = """(float[4] x) => (float[4] y) <int64 n = {8}> {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[4] h) => (bool go, float[4] next) {
        go = Identity (on)  four = Constant <value_float = 4.0> ()  s = Sin (h)  next = Mul (s, four)
    }>
}"""


def sines(x: Any, off: float) -> Any:
    """SINES in float64, its sines off by a relative ``off``."""
    for _ in range(8):
        x = 4 * np.sin(x) * (1 + off)
    return np.float32(x)


def test_loop_makes_the_errors_of_elementary_functions_large() -> None:
    """A target's own polynomials are right to 1e-6, ONNX Runtime's to a tenth of that: both are rounding."""
    model, feeds = parsed(SINES), {"x": np.array([0.1, 0.3, 0.6, 0.8], np.float32)}
    exact = sines(feeds["x"].astype(np.float64), 0.0)
    reference = {"y": exact}
    for off in (8e-7, -8e-7):
        (note,) = rounding_notes(model, feeds, {"y": sines(feeds["x"].astype(np.float64), off)}, reference) or []
        assert "a relative 1e-06 in elementary functions moves it by" in note
    for off in (1e-4, -1e-4, 1e-5):
        assert rounding_notes(model, feeds, {"y": sines(feeds["x"].astype(np.float64), off)}, reference) is None


def test_elementary_function_that_gives_the_output() -> None:
    model, feeds = parsed("(float[2] x) => (float[2] y) { y = Exp (x) }"), {"x": np.array([90.0, 1.0], np.float32) - 5}
    exact = np.exp(feeds["x"].astype(np.float64))
    reference = {"y": np.float32(exact)}
    assert rounding_notes(model, feeds, {"y": np.float32(exact * (1 + 2e-5))}, reference) is None
    assert rounding_notes(model, feeds, {"y": np.float32(exact)}, {"y": np.float32(exact * (1 - 2e-5))})
