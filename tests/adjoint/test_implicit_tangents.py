"""Tangents of a fixed point by the tangent system: closed forms, and where the loop did not converge."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from onnx_cfad.solvers.choice import SOLVERS
from tests.adjoint.agreement import seeds
from tests.adjoint.test_implicit import COS, LINE, TRUE_A, TRUE_AA, TWO_STEPS_A
from tests.corpus import CORPUS
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort


def marked(text: str, plan: str) -> onnx.ModelProto:
    """The model with an adjoint in the metadata of its loop."""
    proto = model(text)
    node = next(node for node in proto.graph.node if node.op_type == "Loop")
    node.metadata_props.add(key="onnx_cfad.adjoint", value=plan)
    return proto


def tangent(proto: onnx.ModelProto, wrt: str, /, **feeds: Any) -> float:
    """The derivative of y along one input."""
    emitted = cfad.jvp(proto, wrt=[wrt], outputs=["y"]).proto()
    check_emitted(emitted)
    arrays = {name: np.asarray(value) for name, value in {**feeds, f"{wrt}_tangent": 1.0}.items()}
    return float(run_ort(emitted, arrays)["y_tangent"])


def hessian(text: str, plan: str, wrt: list[str], /, **feeds: Any) -> dict[str, float]:
    """The derivatives of the gradient by ``wrt`` along the first of these."""
    emitted = cfad.hvp(model(text), loss="y", wrt=wrt, sites=[f"main/loop={plan}"]).proto()
    check_emitted(emitted)
    directions = {f"{name}_tangent": float(name == wrt[0]) for name in wrt}
    found = run_ort(emitted, {name: np.asarray(value) for name, value in {**feeds, **directions}.items()})
    return {name: float(found[f"{name}_grad_tangent"]) for name in wrt}


def test_tangent_of_the_cosine() -> None:
    assert abs(tangent(model(COS), "a", a=1.0, y0=1.0, cap=500) - TRUE_A) < 1e-6
    assert tangent(model(COS), "y0", a=1.0, y0=1.0, cap=500) == 0


def test_no_tangent_is_carried_through_the_iterations() -> None:
    emitted = cfad.jvp(model(COS), wrt=["a"]).proto()
    (loop,) = [node for node in emitted.graph.node if node.name == "loop"]
    assert len(loop.input) == 2 + 1 + 2  # the value, the trips, whether it met its tolerance


KEEPING = """keeping (double[3] u0, double[2] c, int64 cap) => (double[3] y) {
    true = Constant <value = bool {1}> ()
    tol = Constant <value = double {1e-9}> ()
    zero = Constant <value = double[1] {0}> ()
    head = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> ()
    three = Constant <value = int64[1] {3}> ()
    [loop] y = Loop (cap, true, u0) <body = step (int64 i, bool on, double[3] u) => (bool go, double[3] next) {
        right = Slice (u, one, three)
        left = Slice (u, head, two)
        slope = Sub (right, left)
        flow = Mul (slope, c)
        gain = Concat <axis = 0> (flow, zero)
        loss = Concat <axis = 0> (zero, flow)
        change = Sub (gain, loss)
        next = Add (u, change)
        size = Abs (change)
        r = ReduceMax <keepdims = 0> (size)
        go = Greater (r, tol)
    }>
}"""


@pytest.mark.parametrize("wrt", [["u0"], ["u0", "c"]])
@pytest.mark.parametrize("kind", ["double", "float"])
def test_what_the_map_keeps_of_its_initial_value_has_a_tangent(kind: str, wrt: list[str]) -> None:
    """Heat flows until all have the mean of what they had, whatever the conductivities."""
    text = KEEPING.replace("double", kind)
    text = text if kind == "double" else text.replace("{1e-9}", "{1e-6}")
    assert type(cfad.plan(model(text))["main/loop"]).__name__ == "Implicit"
    dtype = np.float64 if kind == "double" else np.float32
    feeds = {"u0": np.asarray([0.3, 2, -1], dtype), "c": np.asarray([0.3, 0.2], dtype), "cap": np.asarray(900)}
    tangents = {"u0": np.asarray([1, 2, -1.5], dtype), "c": np.asarray([1, -1], dtype)}
    emitted = cfad.jvp(model(text), wrt=wrt).proto()
    found = run_ort(emitted, {**feeds, **{f"{name}_tangent": tangents[name] for name in wrt}})
    np.testing.assert_allclose(found["y_tangent"], np.full(3, 0.5), rtol=1e-3 if kind == "float" else 1e-6)
    seed = np.asarray([1, 2, 3], dtype)
    gradient = run_ort(cfad.vjp(model(text)).proto(), {**feeds, "y_grad": seed})
    np.testing.assert_allclose(gradient["u0_grad"], np.full(3, 2), rtol=1e-3 if kind == "float" else 1e-6)


@pytest.mark.parametrize("y0", [1.0, 0.7390851332151607])
def test_initial_value_that_is_the_result_already_has_no_tangent(y0: float) -> None:
    assert tangent(model(COS), "y0", a=1.0, y0=y0, cap=500) == 0


def test_two_iterations_give_the_tangent_of_two_iterations() -> None:
    feeds = {"a": 1.0, "y0": 1.0, "cap": 2}
    assert abs(tangent(model(COS), "a", **feeds) - TWO_STEPS_A) < 1e-6
    assert abs(tangent(model(COS), "y0", **feeds) - np.sin(np.cos(1)) * np.sin(1)) < 1e-12
    assert np.isnan(tangent(marked(COS, "implicit(fallback=nan)"), "a", **feeds))


def test_zero_trips_hand_the_tangent_of_the_initial_value_on() -> None:
    feeds = {"a": 1.0, "y0": 1.0, "cap": 0}
    assert (tangent(model(COS), "a", **feeds), tangent(model(COS), "y0", **feeds)) == (0, 1)


@pytest.mark.parametrize("y0", [0.0, -2.0])
def test_tangents_of_what_does_not_contract_are_carried(y0: float) -> None:
    feeds = {"a": 1.5, "b": 1.0, "y0": y0, "tol": 1e-9, "cap": 20}
    carried = tangent(model(LINE), "b", **feeds)  # its tolerance is an input: not implicit unasked
    assert tangent(marked(LINE, "implicit"), "b", **feeds) == carried != -2
    assert np.isnan(tangent(marked(LINE, "implicit(fallback=nan)"), "b", **feeds))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_tangent_is_exact_however_loose_the_loop_is(solver: str) -> None:
    """y = b / (1 - a), and dy/db = 2 does not depend on y: after three iterations carried tangents are at 1.75."""
    feeds = {"a": 0.5, "b": 1.0, "y0": 0.0, "tol": 0.25, "cap": 50}
    assert tangent(model(LINE), "b", **feeds) == 1.75
    assert abs(tangent(marked(LINE, f"implicit(solver={solver})"), "b", **feeds) - 2) < 1e-10


@pytest.mark.parametrize("plan", ["implicit", "implicit(solver=gmres,fallback=nan)", "implicit(fallback=none)"])
def test_second_derivative_of_the_cosine_by_forward_over_reverse(plan: str) -> None:
    assert abs(hessian(COS, plan, ["a"], a=1.0, y0=1.0, cap=500)["a"] - TRUE_AA) < 1e-6


@pytest.mark.parametrize("solver", SOLVERS)
def test_second_derivatives_do_not_lag_behind_the_iterates(solver: str) -> None:
    """d2y/da db = 1 / (1 - a)^2 = 4 depends on no iterate: three iterations are enough."""
    feeds = {"a": 0.5, "b": 1.0, "y0": 0.0, "tol": 0.25, "cap": 50}
    assert abs(hessian(LINE, f"implicit(solver={solver})", ["a", "b"], **feeds)["b"] - 4) < 1e-9


def test_second_derivative_where_the_loop_did_not_converge() -> None:
    steps = {"y0": 1.0, "cap": 3}
    ahead, behind = (tangent(model(COS), "a", a=1 + step, **steps) for step in (1e-6, -1e-6))
    found = hessian(COS, "implicit", ["a"], a=1.0, **steps)["a"]
    assert abs(found - (ahead - behind) / 2e-6) < 1e-7


def test_reverse_over_forward_and_forward_over_forward() -> None:
    first = cfad.jvp(model(COS), wrt=["a"]).proto()
    feeds = {name: np.asarray(x) for name, x in {"a": 1.0, "y0": 1.0, "cap": 500, "a_tangent": 1.0}.items()}
    backwards = cfad.vjp(first, wrt=["a"], outputs=["y_tangent"])
    (gradient,), (seed,) = backwards.report.gradients.values(), backwards.report.seeds.values()
    assert abs(run_ort(backwards.proto(), {**feeds, seed: np.asarray(1.0)})[gradient] - TRUE_AA) < 1e-6
    forwards = cfad.jvp(first, wrt=["a"], outputs=["y_tangent"])
    (pushed,), (taken,) = forwards.report.pushed.values(), forwards.report.tangents.values()
    assert abs(run_ort(forwards.proto(), {**feeds, taken: np.asarray(1.0)})[pushed] - TRUE_AA) < 1e-6


@pytest.mark.parametrize(
    "name",
    ["fixed_point_equilibrium", "fixed_point_of_two_carries", "fixed_point_newton"]
    + ["fixed_point_with_a_loop_and_a_branch_inside"],
)
def test_tangents_pair_with_the_taped_gradient(name: str) -> None:
    """<ct, J t> by the tangent system is <J' ct, t> by a reverse pass through the iterations."""
    example = CORPUS["fixed_points"][name]()
    outputs = example.outputs or None
    forwards = cfad.jvp(example.model, wrt=list(example.wrt), outputs=outputs)
    backwards = cfad.vjp(example.model, wrt=list(example.wrt), outputs=outputs, plan="taped").proto()
    cts, generator = seeds(example), np.random.default_rng(3)
    along = {t: generator.standard_normal(np.shape(example.feeds[x])) for x, t in forwards.report.tangents.items()}
    pushed = run_ort(forwards.proto(), {**example.feeds, **along})
    pulled = run_ort(backwards, {**example.feeds, **cts})
    ahead = sum(np.sum(pushed[t] * cts[f"{y}_grad"]) for y, t in forwards.report.pushed.items() if f"{y}_grad" in cts)
    behind = sum(np.sum(pulled[f"{x}_grad"] * along[t]) for x, t in forwards.report.tangents.items())
    assert abs(ahead - behind) < 1e-10 * max(1, abs(behind)), f"{ahead} {behind}"


def test_float32_tangents_follow_float64() -> None:
    narrow, wide = (CORPUS["fixed_points"]["fixed_point_equilibrium"](real) for real in ("float", "double"))
    along = {"x_tangent": np.asarray([[0.5, -1.0, 0.25], [1.0, 0.0, -0.5]])}
    expected = run_ort(cfad.jvp(wide.model, wrt=["x"]).proto(), {**wide.feeds, **along})["y_tangent"]
    feeds = {**narrow.feeds, "x_tangent": along["x_tangent"].astype(np.float32)}
    found = run_ort(cfad.jvp(narrow.model, wrt=["x"]).proto(), feeds)["y_tangent"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("asked", [{"plan": "implicit"}, {"sites": ["main/loop=implicit(solver=gmres)"]}])
def test_a_loose_loop_is_implicit_when_asked(asked: dict[str, Any]) -> None:
    """After three iterations carried tangents are at 1.75; those of the fixed point are 2."""
    found = cfad.jvp(model(LINE), wrt=["b"], outputs=["y"], **asked)
    feeds = {"a": 0.5, "b": 1.0, "y0": 0.0, "tol": 0.25, "cap": 50, "b_tangent": 1.0}
    result = run_ort(found.proto(), {name: np.asarray(value) for name, value in feeds.items()})
    assert abs(float(result["y_tangent"]) - 2) < 1e-10
    assert [site.path for site in found.report.sites] == list(found.plan.decisions) == ["main/loop"]


def test_the_report_lists_implicit_loops_alone() -> None:
    assert [site.path for site in cfad.jvp(model(COS), wrt=["a"]).report.sites] == ["main/loop"]
    carried = cfad.jvp(model(LINE), wrt=["b"])
    assert (carried.report.sites, dict(carried.plan.decisions)) == ((), {})


def test_fallback_may_be_asked_for() -> None:
    found = cfad.jvp(model(COS), wrt=["a"], implicit_fallback="nan")
    result = run_ort(
        found.proto(), {n: np.asarray(v) for n, v in {"a": 1.0, "y0": 1.0, "cap": 2, "a_tangent": 1.0}.items()}
    )
    assert np.isnan(float(result["y_tangent"]))


@pytest.mark.parametrize("asked", [{"plan": "taped"}, {"sites": ["main/loop=checkpointed"]}])
def test_plans_of_a_reverse_pass_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(cfad.PlanError, match="forward mode has none"):
        cfad.jvp(model(LINE), wrt=["b"], **asked)
