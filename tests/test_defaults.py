"""Initializers that are graph inputs too: what a caller gives in their place decides, in every place that reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.oracle import assert_vjp, check_emitted, run_ort

MODELS = {
    "trips": """(double[3] x, int64 n = {2}, double[3] w = {0.5, 1.5, -1}) => (double[3] y) {
        y = Loop (n, , x) <body = step (int64 i, bool go, double[3] h) => (bool on, double[3] next) {
            on = Identity (go)
            t = Mul (h, w)
            next = Sin (t)
        }>
    }""",
    "start": """(double[3] x, bool start = {0}, double limit = {100}) => (double[3] y) {
        n = Constant <value = int64 {4}> ()
        y = Loop (n, start, x) <body = step (int64 i, bool go, double[3] h) => (bool on, double[3] next) {
            total = ReduceSum <keepdims = 0> (h)
            on = Less (total, limit)
            a = Sin (h)
            next = Add (a, h)
        }>
    }""",
    "predicate": """(double[3] x, bool p = {1}) => (double[3] y) {
        y = If (p) <
            then_branch = a () => (double[3] t) { t = Sin (x) },
            else_branch = b () => (double[3] e) { e = Mul (x, x) }
        >
    }""",
    "bounds": """(double[4,3] x, int64[1] s = {1}, int64[1] e = {3}, int64[1] axis = {0}) => (double[K] y) {
        part = Slice (x, s, e)
        total = ReduceSum <keepdims = 0> (part, axis)
        y = Sin (total)
    }""",
    "shape": """(double[4,3] x, int64[2] shape = {2, 6}, int64[4] pads = {0, 0, 0, 0}) => (double[P, Q] y) {
        turned = Reshape (x, shape)
        wider = Pad (turned, pads)
        y = Sin (wider)
    }""",
    "length": """(double[M] x, double[K] w) => (double[K] y) {
        total = ReduceSum <keepdims = 1> (x)
        product = Mul (w, total)
        y = Sin (product)
    }""",
    "exponent": """(double[3] x, double k = {2}) => (double[3] y) {
        y = Pow (x, k)
    }""",
}
X = np.asarray([0.3, 0.7, 1.1])
WIDE = np.linspace(0.1, 1.2, 12).reshape(4, 3)
GIVEN: list[tuple[str, dict[str, Any]]] = [
    *[("trips", {"x": X, "n": np.asarray(n), "w": np.asarray([1.0, -0.5, 2.0])}) for n in (0, 1, 5)],
    ("start", {"x": X, "start": np.asarray(True), "limit": np.asarray(4.0)}),
    ("predicate", {"x": X, "p": np.asarray(False)}),
    ("bounds", {"x": WIDE, "s": np.asarray([0]), "e": np.asarray([2]), "axis": np.asarray([1])}),
    ("shape", {"x": WIDE, "shape": np.asarray([3, 4]), "pads": np.asarray([1, 0, 0, 2])}),
    ("length", {"x": X, "w": np.asarray([1.0, 2.0, -1.0, 0.5])}),
    ("exponent", {"x": X, "k": np.asarray(3.0)}),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {},
    "taped": {"plan": "taped"},
    "checkpointed": {"plan": "checkpointed", "segment": 2},
    "cuda": {"target": "cuda"},
}


def parsed(name: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {MODELS[name]}')
    if name == "length":  # text gives a default only to a shape of numbers
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([0.5, 1.5]), "w"))
    return model


def without_defaults(name: str) -> onnx.ModelProto:
    model = parsed(name)
    model.graph.ClearField("initializer")
    return model


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("name", "feeds"), GIVEN)
def test_what_is_given_decides(name: str, feeds: dict[str, Any], options: str) -> None:
    """The model with defaults does what the one without does, whose gradient is compared with differences."""
    wrt = [k for k, a in feeds.items() if a.dtype.kind == "f" and k != "limit"]
    plain = without_defaults(name)
    if options == "auto":
        assert_vjp(plain, feeds, wrt=wrt)
    seed = {"y_grad": np.cos(np.arange(run_ort(plain, feeds)["y"].size)).reshape(run_ort(plain, feeds)["y"].shape)}
    expected = run_ort(cfad.vjp(plain, wrt=wrt).proto(), {**feeds, **seed})
    emitted = cfad.vjp(parsed(name), wrt=wrt, **OPTIONS[options]).proto()
    check_emitted(emitted)
    found = run_ort(emitted, {**feeds, **seed})
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "feeds"), GIVEN)
def test_tangents_follow_what_is_given(name: str, feeds: dict[str, Any]) -> None:
    tangents = {"x_tangent": np.ones_like(feeds["x"])}
    found, expected = (
        run_ort(cfad.jvp(model, wrt=["x"]).proto(), {**feeds, **tangents})
        for model in (parsed(name), without_defaults(name))
    )
    np.testing.assert_allclose(found["y_tangent"], expected["y_tangent"], rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_stay_optional(name: str) -> None:
    model = parsed(name)
    emitted = cfad.vjp(model, wrt=["x"]).proto()
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert defaults.keys() <= {t.name for t in emitted.graph.initializer} & {i.name for i in emitted.graph.input}
    x = WIDE if name in ("bounds", "shape") else X
    seed = {"y_grad": np.ones_like(run_ort(model, {"x": x})["y"])}
    found, expected = (run_ort(emitted, {"x": x, **seed, **given}) for given in ({}, defaults))
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
