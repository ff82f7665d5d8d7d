"""Clipping against the recurrence written out by hand in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.oracle import check_emitted, run_ort

Array = np.ndarray[Any, Any]

TRIPS = 6
W = np.array([3.0, -2.0, 0.5])
X = np.array([0.3, -0.7, 1.1])
SEED = np.array([1.0, 2.0, -1.5])


def model() -> onnx.ModelProto:
    """h <- w * sin(h), which explodes where |w| > 1."""
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    g (double[3] x, double[3] w) => (double[3] y) <int64 trips = {{{TRIPS}}}> {{
        y = Loop (trips, , x) <body = b (int64 i, bool c, double[3] h) => (bool d, double[3] next) {{
            d = Identity (c)  s = Sin (h)  next = Mul (s, w) }}>
    }}""")


def by_hand(clip: Callable[[Array], Array]) -> tuple[Array, Array]:
    states = [X]
    for _ in range(TRIPS):
        states.append(W * np.sin(states[-1]))
    ct, dw = SEED, np.zeros(3)
    for h in states[-2::-1]:
        dw = dw + ct * np.sin(h)
        ct = clip(ct * W * np.cos(h))
    return ct, dw


def gradients(**options: Any) -> tuple[Array, Array]:
    emitted = cfad.vjp(model(), **options).proto()
    check_emitted(emitted)
    found = run_ort(emitted, {"x": X, "w": W, "y_grad": SEED})
    return found["x_grad"], found["w_grad"]


def test_value_clamps_the_final_gradients() -> None:
    for found, plain in zip(gradients(clip_value=0.5), by_hand(lambda ct: ct), strict=True):
        np.testing.assert_allclose(found, np.clip(plain, -0.5, 0.5), rtol=1e-12)


def test_norm_scales_all_gradients_together() -> None:
    plain = by_hand(lambda ct: ct)
    total = np.sqrt(sum(np.sum(g**2) for g in plain))
    assert total > 2
    for found, expected in zip(gradients(clip_norm=2.0), plain, strict=True):
        np.testing.assert_allclose(found, expected * 2 / (total + 1e-6), rtol=1e-12)
    for found, expected in zip(gradients(clip_norm=1e6), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("plan", [{}, {"plan": "checkpointed", "segment": 2}, {"plan": "checkpointed", "segment": 4}])
def test_carries_are_clamped_in_every_iteration(plan: dict[str, Any]) -> None:
    expected = by_hand(lambda ct: np.clip(ct, -0.7, 0.7))
    found = gradients(clip_value=0.7, clip_carries=True, **plan)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, np.clip(e, -0.7, 0.7), rtol=1e-12)


def test_carries_are_scaled_in_every_iteration() -> None:
    expected = by_hand(lambda ct: ct * min(1.0, 0.9 / (np.linalg.norm(ct) + 1e-6)) if np.linalg.norm(ct) > 0.9 else ct)
    total = np.sqrt(sum(np.sum(g**2) for g in expected))
    found = gradients(clip_norm=0.9, clip_carries=True)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e * (0.9 / (total + 1e-6) if total > 0.9 else 1.0), rtol=1e-10)


def test_nan_is_kept_unless_replaced() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (double[2] x) => (double[2] y) { y = Sqrt (x) }'
    feeds = {"x": np.array([-1.0, 4.0]), "y_grad": np.ones(2)}
    root = onnx.parser.parse_model(text)
    limits: list[dict[str, Any]] = [{"clip_value": 1.0}, {"clip_norm": 1.0}]
    for options in limits:
        assert np.isnan(run_ort(cfad.vjp(root, **options).proto(), feeds)["x_grad"]).any()
        replaced = run_ort(cfad.vjp(root, replace_nan=True, **options).proto(), feeds)["x_grad"]
        np.testing.assert_allclose(replaced, [0.0, 0.25])


LIMITS = [float("inf"), float("nan"), -float("inf"), -1.0, 0.0]


@pytest.mark.parametrize(
    "options", [{"clip_carries": True}, *({name: x} for name in ("clip_value", "clip_norm") for x in LIMITS)]
)
def test_limits_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(cfad.PlanError):
        cfad.vjp(model(), **options)


@pytest.mark.parametrize("name", ["clip_value", "clip_norm"])
def test_limit_is_one_of_the_element_type(name: str) -> None:
    half = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float16[2] x) => (float16[2] y) { y = Mul (x, x) }'
    )
    feeds = {"x": np.array([3.0, -4.0], np.float16), "y_grad": np.ones(2, np.float16)}
    large: dict[str, Any] = {name: 1e300}
    small: dict[str, Any] = {name: 1e-60}
    found = run_ort(cfad.vjp(half, **large).proto(), feeds)["x_grad"]
    np.testing.assert_array_equal(found, np.array([6.0, -8.0], np.float16))
    with pytest.raises(cfad.PlanError, match=f"{name} 1e-60: it is 0 in float"):
        cfad.vjp(half, **small)
