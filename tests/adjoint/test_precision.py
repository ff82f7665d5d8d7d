"""Gradients in float16, and of bodies that compute in several types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import onnx_cfad as cfad
from tests.adjoint.agreement import LEVELS, emitted, parameters, run, seeds
from tests.corpus import CORPUS, Example, Maker
from tests.corpus.entry import example
from tests.oracle import assert_vjp, run_ort

HALF = ("loops", "carries", "captures", "tapes", "scans", "branches", "nests", "branch_nests")
# A trip count, an early exit or a mask that float16 decides otherwise, or values beyond its range.
DECIDED_OTHERWISE: frozenset[str] = frozenset()


def half_makers() -> list[Any]:
    return [
        pytest.param(maker, id=name, marks=(pytest.mark.slow,) if name == "loop_long" else ())
        for group in HALF
        for name, maker in CORPUS[group].items()
        if name not in DECIDED_OTHERWISE
    ]


@pytest.mark.parametrize("maker", half_makers())
def test_float16_follows_float64(maker: Maker) -> None:
    wide = maker()
    narrow = maker("float16")
    found = run(emitted(narrow), {**narrow.feeds, **seeds(narrow)}, LEVELS[-1])
    expected = _gradients_at(wide, narrow)
    for name in wide.wrt:
        gradient = found[f"{name}_grad"]
        assert gradient.dtype == np.float16
        scale = float(np.linalg.norm(expected[f"{name}_grad"]))
        error = float(np.linalg.norm(gradient.astype(np.float64) - expected[f"{name}_grad"]))
        assert error <= 0.03 * scale + 0.01, f"{name}: {gradient} against {expected[f'{name}_grad']}"


def _gradients_at(wide: Example, narrow: Example) -> dict[str, np.ndarray[Any, Any]]:
    """The float64 gradients at the point that float16 feeds round to, for the seeds that float16 can hold."""
    rounded = {k: a.astype(np.float64) if a.dtype == np.float16 else a for k, a in narrow.feeds.items()}
    cotangents = {k: a.astype(np.float64) for k, a in seeds(narrow).items()}
    return run(emitted(wide), {**rounded, **cotangents}, LEVELS[-1])


@pytest.mark.parametrize("maker", parameters("precision"))
def test_mixed_body_matches_differences(maker: Maker) -> None:
    """Differences of what rounds to float32 need a wide step; a float16 value is varied in its own grid."""
    example = maker()
    wrt = [name for name in example.wrt if example.feeds[name].dtype != np.float16]
    assert_vjp(example.model, example.feeds, wrt=wrt, outputs=["y"], step=2e-3, rtol=2e-3)


@pytest.mark.parametrize("maker", parameters("precision"))
def test_gradient_has_the_type_of_its_value(maker: Maker) -> None:
    example = maker()
    found = run(emitted(example), {**example.feeds, **seeds(example)}, LEVELS[-1])
    for name in example.wrt:
        assert found[f"{name}_grad"].dtype == example.feeds[name].dtype
        assert found[f"{name}_grad"].shape == example.feeds[name].shape


def test_half_weight_gets_the_gradient_of_its_wide_copy() -> None:
    example = CORPUS["precision"]["half_weight_in_body"]()
    cotangent = seeds(example)
    found = run(emitted(example), {**example.feeds, **cotangent}, LEVELS[-1])
    value = {"x": example.feeds["x"], "trips": example.feeds["trips"]}
    w, step = example.feeds["w"].astype(np.float64), 1e-6
    for k in range(3):
        ends = [_closed_form(value["x"], w + sign * step * np.eye(3)[k], 3) for sign in (1, -1)]
        numeric = float(np.sum(cotangent["y_grad"] * (ends[0] - ends[1])) / (2 * step))
        assert abs(numeric - float(found["w_grad"][k])) <= 2e-3 * (1 + abs(numeric))


def _closed_form(h: Any, w: Any, trips: int) -> Any:
    for _ in range(trips):
        h = np.sin(h) * w + h
    return h


LONG_SUM = """(real[1] x, real[1] w{heads}) => (real[1] y) <int64 many = {{3000}}> {{
    y = Loop ({limit}, , x) <body = body (int64 i, bool going, real[1] h) => (bool again, real[1] next) {{
        again = Identity (going)
        next = Add (h, w)
    }}>
}}"""


@pytest.mark.parametrize("limit", ["many", "n"])
def test_float16_sum_over_iterations_does_not_stall(limit: str) -> None:
    """A running sum of ones in float16 would stop at 2,048."""
    text = LONG_SUM.format(heads="" if limit == "many" else ", int64 n", limit=limit)
    feeds: dict[str, Any] = {"x": np.zeros(1), "w": np.zeros(1), **({"n": 3000} if limit == "n" else {})}
    model = example("float16", text, feeds)
    found = run(emitted(model), {**model.feeds, "y_grad": np.ones(1, np.float16)}, LEVELS[-1])
    assert found["w_grad"].dtype == np.float16
    assert float(found["w_grad"][0]) == 3000.0


def test_float16_sum_over_slices_of_a_scan_does_not_stall() -> None:
    text = """(real[3000, 1] xs, real[1] w) => (real[3000, 1] ys) {
        ys = Scan <num_scan_inputs = 1, body = body (real[1] x) => (real[1] y) { y = Add (x, w) }> (xs)
    }"""
    model = example("float16", text, {"xs": np.zeros((3000, 1)), "w": np.zeros(1)})
    found = run(emitted(model), {**model.feeds, "ys_grad": np.ones((3000, 1), np.float16)}, LEVELS[-1])
    assert float(found["w_grad"][0]) == 3000.0


def test_float16_sum_over_a_broadcast_axis_does_not_stall() -> None:
    text = """(real[4000, 1] x, real[1, 1] w) => (real[4000, 1] y) { y = Add (x, w) }"""
    model = example("float16", text, {"x": np.zeros((4000, 1)), "w": np.zeros((1, 1))})
    found = run(emitted(model), {**model.feeds, "y_grad": np.ones((4000, 1), np.float16)}, LEVELS[-1])
    assert float(found["w_grad"][0, 0]) == 4000.0


BFLOAT16_STATE = """<ir_version: 10, opset_import: ["": 21]>
kept (float[3] x, float[3] u, int64 n, bool p) => (float[3] y) {
    start = Cast <to = KIND> (x)
    last = Loop (n, , start) <body = step (int64 i, bool go, STATE[3] s) => (bool on, STATE[3] next) {
        on = Identity (go)
        a = Cast <to = 1> (s)
        b = Sin (a)
        c = Mul (b, u)
        d = Cast <to = KIND> (c)
        next = If (p) <
            then_branch = kept () => (STATE[3] t) { t = Identity (d) },
            else_branch = left () => (STATE[3] e) {
                half = Cast <to = 1> (s)
                less = Mul (half, u)
                e = Cast <to = KIND> (less)
            }
        >
    }>
    both = Concat <axis = 0> (last, start)
    wide = Cast <to = 1> (both)
    axis = Constant <value = int64[2] {2, 3}> ()
    rows = Reshape (wide, axis)
    first = Constant <value = int64[1] {0}> ()
    total = ReduceSum <keepdims = 0> (rows, first)
    y = Mul (total, total)
}"""


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"plan": "taped"},
        {"plan": "checkpointed", "segment": 2},
        {"target": "cuda"},
        {"clip_value": 1e6, "clip_carries": True},
    ],
)
def test_state_kept_in_bfloat16(options: dict[str, Any], taken: bool) -> None:
    """ONNX Runtime moves and casts bfloat16 and computes nothing with it, and so do gradients."""
    feeds = {
        "x": np.asarray([0.5, -0.25, 0.75], np.float32),
        "u": np.asarray([1.5, 0.5, -1.0], np.float32),
        "n": np.asarray(3),
        "p": np.asarray(taken),
    }
    seed = np.asarray([1.0, -0.5, 2.0], np.float32)
    found, expected = (
        run_ort(emitted, {**feeds, "y_grad": seed})
        for emitted in (
            cfad.vjp(parse_model(BFLOAT16_STATE.replace("KIND", kind).replace("STATE", state)), **given).proto()
            for kind, state, given in (("16", "bfloat16", options), ("1", "float", {}))
        )
    )
    for name in ("x_grad", "u_grad"):
        np.testing.assert_allclose(found[name], expected[name], rtol=2.0**-4, atol=2.0**-5)
