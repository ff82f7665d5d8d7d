"""Loops whose own iterations are accelerated: the same fixed point, fewer iterations, the same derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_cfad as cfad
from tests.adjoint.test_implicit import COS, TRUE_A, TRUE_AA, WHILE
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

FORWARD = "implicit(forward=anderson,fallback=nan)"
COUNTED = """counted (double[6] b, double[6,6] w, int64 cap) => (double[6] z, int64 count) {
    true = Constant <value = bool {1}> ()
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    start = Sub (b, b)
    tol = Constant <value = double {1e-12}> ()
    [loop] z, count = Loop (cap, true, start, zero) <body = step (int64 i, bool on, double[6] s, int64 n)
        => (bool go, double[6] f, int64 m) {
        m = Add (n, one)
        p = MatMul (w, s)
        q = Add (p, b)
        f = Tanh (q)
        d = Sub (f, s)
        r = ReduceL2 <keepdims = 0> (d)
        go = Greater (r, tol)
    }>
}"""


def weights(radius: float) -> np.ndarray[Any, Any]:
    """A symmetric matrix of that spectral radius, whose eigenvalues lie apart."""
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((6, 6)))[0]
    return (q * (radius * np.asarray([1, -0.9, 0.7, 0.5, -0.4, 0.2]))) @ q.T


@pytest.mark.parametrize(("radius", "part"), [(0.5, 0.6), (0.9, 0.3), (0.99, 0.15)])
def test_same_fixed_point_in_fewer_iterations(radius: float, part: float) -> None:
    feeds = {"b": 0.02 * np.arange(1.0, 7.0), "w": weights(radius), "cap": np.asarray(5000), "z_grad": np.ones(6)}
    plain, fast = (
        cfad.vjp(model(COUNTED), wrt=["b", "w"], outputs=["z"], sites=[f"main/loop={adjoint}"])
        for adjoint in ("implicit", FORWARD)
    )
    check_emitted(fast.proto())
    expected, found = (run_ort(result.proto(), feeds) for result in (plain, fast))
    assert found["count"] <= part * expected["count"], (found["count"], expected["count"])
    for name in ("z", "b_grad", "w_grad"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-9)


def test_the_report_says_that_results_change() -> None:
    found = cfad.vjp(model(COS), wrt=["a"], sites=[f"main/loop={FORWARD}"])
    assert any("accelerated" in warning for warning in found.report.warnings)
    assert not any("accelerated" in warning for warning in cfad.vjp(model(COS), wrt=["a"]).report.warnings)


def test_exported_equilibrium_takes_fewer_steps() -> None:
    reference = np.load("models/equilibrium_while.npz")
    found = cfad.vjp("models/equilibrium_while.onnx", wrt=["x"], outputs=["y"], sites=[f"{WHILE}={FORWARD}"])
    feeds = {"x": reference["in_x"].astype(np.float32), "y_grad": reference["cot_0"].astype(np.float32)}
    result = run_ort(found.proto(), feeds)
    assert result["steps"] < reference["out_steps"]
    np.testing.assert_allclose(result["y"], reference["out_y"], rtol=1e-4, atol=1e-5)
    error = np.linalg.norm(result["x_grad"] - reference["implicit_x"]) / np.linalg.norm(reference["implicit_x"])
    assert error < 1e-5, error


def test_second_derivative_and_tangents_are_those_of_the_fixed_point() -> None:
    feeds = {name: np.asarray(value) for name, value in {"a": 1.0, "y0": 1.0, "cap": 500, "a_tangent": 1.0}.items()}
    ahead = run_ort(cfad.jvp(model(COS), wrt=["a"], sites=[f"main/loop={FORWARD}"]).proto(), feeds)
    assert abs(float(ahead["y_tangent"]) - TRUE_A) < 1e-6
    second = cfad.hvp(model(COS), loss="y", wrt=["a"], sites=[f"main/loop={FORWARD}"])
    check_emitted(second.proto())
    assert abs(float(run_ort(second.proto(), feeds)["a_grad_tangent"]) - TRUE_AA) < 1e-6


def test_what_stops_by_its_cap_has_no_gradient() -> None:
    found = cfad.vjp(model(COS), wrt=["a"], sites=[f"main/loop={FORWARD}"])
    feeds = {name: np.asarray(value) for name, value in {"a": 1.0, "y0": 1.0, "cap": 2, "y_grad": 1.0}.items()}
    assert np.isnan(float(run_ort(found.proto(), feeds)["a_grad"]))


@pytest.mark.parametrize(
    ("adjoint", "why"),
    [("implicit(forward=anderson)", "fallback=nan"), ("implicit(forward=newton,fallback=nan)", "plain, anderson")],
)
def test_settings_that_do_not_fit_are_refused(adjoint: str, why: str) -> None:
    with pytest.raises(cfad.PlanError, match=why):
        cfad.vjp(model(COS), sites=[f"main/loop={adjoint}"])


def test_a_loop_without_a_tolerance_is_refused() -> None:
    text = COS.replace("go = Greater (r, tol)", "go = Identity (on)")
    with pytest.raises(cfad.PlanError, match="cannot be accelerated"):
        cfad.vjp(model(text), wrt=["a"], sites=[f"main/loop={FORWARD}"])
