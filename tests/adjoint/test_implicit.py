"""Implicit gradients: against differences, and where the implicit function theorem does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad.plans.plan import adjoint_from
from onnx_cfad.solvers.choice import SOLVERS
from tests.adjoint.agreement import (
    assert_float32_follows,
    assert_levels_agree,
    assert_matches_differences,
    parameters,
    seeds,
)
from tests.corpus import CORPUS, Maker
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

WHILE = "main/node_while_loop__2"


@pytest.mark.parametrize("maker", parameters("fixed_points"))
def test_gradient_matches_differences(maker: Maker) -> None:
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters("fixed_points"))
def test_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())


@pytest.mark.parametrize("maker", parameters("fixed_points"))
def test_float32_follows_float64(maker: Maker) -> None:
    assert_float32_follows(maker)


COS = """cos (double a, double y0, int64 cap) => (double y) {
    true = Constant <value = bool {1}> ()
    tol = Constant <value = double {1e-13}> ()
    [loop] y = Loop (cap, true, y0) <body = step (int64 i, bool on, double s) => (bool go, double f) {
        p = Mul (s, a)
        f = Cos (p)
        d = Sub (f, s)
        r = Abs (d)
        go = Greater (r, tol)
    }>
}"""
LINE = """line (double a, double b, double y0, double tol, int64 cap) => (double y) {
    true = Constant <value = bool {1}> ()
    [loop] y = Loop (cap, true, y0) <body = step (int64 i, bool on, double s) => (bool go, double f) {
        p = Mul (s, a)
        f = Add (p, b)
        d = Sub (f, s)
        r = Abs (d)
        go = Greater (r, tol)
    }>
}"""
TRUE_A, TRUE_AA = -0.297474, 0.153338  # derivatives of y = cos(a y) at a = 1
TWO_STEPS_A = -np.sin(np.cos(1)) * (np.cos(1) - np.sin(1))  # of cos(a cos(a)): 0.154920


def gradients(text: str, plan: str = "implicit", /, **feeds: Any) -> dict[str, Any]:
    """All outputs of the gradient of a model by its floating-point inputs, for a seed of 1."""
    emitted = cfad.vjp(model(text), sites=[f"main/loop={plan}"], implicit_outputs=True).proto()
    check_emitted(emitted)
    return run_ort(emitted, {name: np.asarray(value) for name, value in {**feeds, "y_grad": 1.0}.items()})


def test_fixed_point_of_the_cosine() -> None:
    found = gradients(COS, a=1.0, y0=1.0, cap=500)
    assert abs(found["a_grad"] - TRUE_A) < 1e-6
    assert found["y0_grad"] == 0
    assert found["loop_converged"]
    assert found["loop_residual"] < 1e-12
    assert 20 < found["loop_adjoint_iterations"] < 200


def test_two_iterations_give_the_derivative_of_two_iterations() -> None:
    found = gradients(COS, a=1.0, y0=1.0, cap=2)
    assert abs(found["a_grad"] - TWO_STEPS_A) < 1e-6
    assert abs(found["y0_grad"] - np.sin(np.cos(1)) * np.sin(1)) < 1e-12
    assert not found["loop_converged"]
    assert np.isnan(gradients(COS, "implicit(fallback=nan)", a=1.0, y0=1.0, cap=2)["a_grad"])


VANISHING = """vanishing (double a, double b, double y0, double v0, int64 cap) => (double y, int64 trips) {
    true = Constant <value = bool {1}> ()
    tol = Constant <value = double {1e-9}> ()
    zero = Constant <value = int64 {0}> ()
    [loop] trips, u, v = Loop (cap, true, zero, y0, v0) <
        body = step (int64 i, bool on, int64 k, double s, double w) => (bool go, int64 next, double f, double q) {
        one = Constant <value = int64 {1}> ()
        next = Add (k, one)
        f = Mul (s, a)
        q = Div (b, f)
        d = Sub (f, s)
        r = Abs (d)
        go = Greater (r, tol)
    }>
    m = Abs (LAST)
    y = Log (m)
}"""


@pytest.mark.parametrize("last", ["u", "v"])
@pytest.mark.parametrize("a", [0.5, -0.5, 0.9])
@pytest.mark.parametrize("kind", ["double", "float"])
def test_a_tolerance_met_by_what_vanishes_is_no_fixed_point(kind: str, a: float, last: str) -> None:
    """Unasked, for u = a^k y0 and v = b / u: log u has the derivative k / a, and the fixed point u = 0 has none."""
    text = VANISHING.replace("LAST", last).replace("double", kind)
    text = text if kind == "double" else text.replace("{1e-9}", "{1e-5}")
    dtype = np.float64 if kind == "double" else np.float32
    feeds = {name: np.asarray(x, dtype) for name, x in (("a", a), ("b", 3), ("y0", 0.7), ("v0", 1))}
    feeds["cap"] = np.asarray(400)
    assert type(cfad.plan(model(text))["main/loop"]).__name__ == "Implicit"
    backward, forward = cfad.vjp(model(text)).proto(), cfad.jvp(model(text), wrt=["a"]).proto()
    found = run_ort(backward, {**feeds, "y_grad": np.asarray(1, dtype)})
    sign, trips = (1 if last == "u" else -1), float(found["trips"])
    assert 10 < trips < 400
    expected = {"a": sign * trips / a, "b": 0 if last == "u" else 1 / 3, "y0": sign / 0.7, "v0": 0}
    for name, value in expected.items():
        np.testing.assert_allclose(found[f"{name}_grad"], value, rtol=1e-4 if kind == "float" else 1e-12)
    tangent = run_ort(forward, {**feeds, "a_tangent": np.asarray(1, dtype)})["y_tangent"]
    np.testing.assert_allclose(tangent, expected["a"], rtol=1e-4 if kind == "float" else 1e-12)


REPLICATOR = """replicator (double[3] p0, double[3] f, int64 cap) => (double[3] y, int64 trips) {
    true = Constant <value = bool {1}> ()
    tol = Constant <value = double {1e-9}> ()
    zero = Constant <value = int64 {0}> ()
    [loop] trips, p = Loop (cap, true, zero, p0) <
        body = step (int64 i, bool on, int64 k, double[3] s) => (bool go, int64 next, double[3] share) {
        one = Constant <value = int64 {1}> ()
        next = Add (k, one)
        fit = Mul (s, f)
        sum = ReduceSum <keepdims = 1> (fit)
        share = Div (fit, sum)
        change = Sub (share, s)
        size = Abs (change)
        r = ReduceMax <keepdims = 0> (size)
        go = Greater (r, tol)
    }>
    y = Log (p)
}"""


@pytest.mark.parametrize("kind", ["double", "float"])
def test_a_vanishing_part_that_the_gradient_feels(kind: str) -> None:
    """Shares p0 f^k / sum: the logarithms of those that go to zero are still felt while the largest does not move."""
    text = REPLICATOR.replace("double", kind)
    text = text if kind == "double" else text.replace("{1e-9}", "{1e-5}")
    assert type(cfad.plan(model(text))["main/loop"]).__name__ == "Implicit"
    dtype = np.float64 if kind == "double" else np.float32
    p, f, seed = (np.asarray(x, dtype) for x in ([0.2, 0.3, 0.5], [1, 1.2, 1.5], [1, -2, 0.5]))
    feeds = {"p0": p, "f": f, "y_grad": seed, "cap": np.asarray(400)}
    found = run_ort(cfad.vjp(model(text)).proto(), feeds)
    k = float(found["trips"])
    shares = p * f**k / np.sum(p * f**k)
    felt = seed - np.sum(seed) * shares  # by the logarithm of p0 f^k
    np.testing.assert_allclose(found["f_grad"], felt * k / f, rtol=1e-3 if kind == "float" else 1e-10)
    np.testing.assert_allclose(found["p0_grad"], felt / p, rtol=1e-3 if kind == "float" else 1e-10)


def test_zero_trips_pass_the_cotangent_through() -> None:
    found = gradients(COS, a=1.0, y0=1.0, cap=0)
    assert (found["a_grad"], found["y0_grad"], found["loop_converged"]) == (0, 1, False)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("y0", [0.0, -2.0])  # -2 is the fixed point, which the loop does not converge to
def test_what_does_not_contract_is_flagged(solver: str, y0: float) -> None:
    feeds = {"a": 1.5, "b": 1.0, "y0": y0, "tol": 1e-9, "cap": 20}
    found = gradients(LINE, f"implicit(solver={solver})", **feeds)
    own = gradients(LINE, "taped", **feeds)
    assert not found["loop_converged"]
    assert found["b_grad"] == own["b_grad"] != -2  # of the iterations that ran
    failed = gradients(LINE, f"implicit(solver={solver},fallback=nan)", **feeds)
    assert np.isnan([failed["a_grad"], failed["b_grad"], failed["y0_grad"]]).all()


@pytest.mark.parametrize(
    ("comparison", "cap", "converged"),
    [("Greater", 50, True), ("Greater", 3, True), ("Greater", 2, False), ("GreaterOrEqual", 50, True)]
    + [("GreaterOrEqual", 4, True), ("GreaterOrEqual", 3, False)],
)
def test_residual_exactly_at_the_tolerance(comparison: str, cap: int, converged: bool) -> None:
    """From 0 towards 2 the changes are 1, 1/2, 1/4; the tolerance is 1/4, and at the cap both may stop the loop."""
    feeds = {"a": 0.5, "b": 1.0, "y0": 0.0, "tol": 0.25, "cap": cap}
    text = LINE.replace("Greater ", f"{comparison} ")
    found, own = gradients(text, **feeds), gradients(text, "taped", **feeds)
    assert found["loop_converged"] == converged
    assert abs(found["b_grad"] - (2 if converged else own["b_grad"])) < 1e-12
    assert (found["y0_grad"] == 0) == converged


def test_not_a_number_has_not_converged() -> None:
    """NaN > tol is false, which ends the loop."""
    text = COS.replace("f = Cos (p)", "l = Log (p) f = Sqrt (l)")
    found = gradients(text, a=-1.0, y0=1.0, cap=50)
    assert not found["loop_converged"]
    assert np.isnan(found["a_grad"])


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_solvers_give_the_gradient(solver: str) -> None:
    example = CORPUS["fixed_points"]["fixed_point_equilibrium"]()
    plan = f"main/loop=implicit(solver={solver},tol=1e-11,max_iterations=400,fallback=nan)"
    emitted = cfad.vjp(example.model, wrt=["x", "w"], sites=[plan]).proto()
    check_emitted(emitted)
    feeds = {**example.feeds, **seeds(example)}
    taped = run_ort(cfad.vjp(example.model, wrt=["x", "w"], plan="taped").proto(), feeds)
    found = run_ort(emitted, feeds)
    for name in ("x_grad", "w_grad"):
        np.testing.assert_allclose(found[name], taped[name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_float16_is_solved_in_float32() -> None:
    example, wide = (CORPUS["fixed_points"]["fixed_point_equilibrium"](real) for real in ("float16", "double"))
    feeds = {**example.feeds, **seeds(example)}
    emitted = cfad.vjp(example.model, wrt=["x", "w"], plan="implicit", implicit_outputs=True).proto()
    found = run_ort(emitted, feeds)
    expected = run_ort(cfad.vjp(wide.model, wrt=["x", "w"]).proto(), {**wide.feeds, **seeds(wide)})
    assert found["loop_converged"]
    for name in ("x_grad", "w_grad"):
        assert found[name].dtype == np.float16
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-2, atol=1e-2, err_msg=name)


def second(text: str, plan: str, /, **feeds: Any) -> float:
    """The second derivative by a, as the gradient of the gradient."""
    first = cfad.vjp(model(text), sites=[f"main/loop={plan}"]).model
    for value in (*first.graph.inputs, *first.graph.outputs):
        value.name = {"y_grad": "seed", "a_grad": "first"}.get(value.name or "", value.name)
    emitted = cfad.vjp(first, wrt=["a"], outputs=["first"]).proto()
    check_emitted(emitted)
    found = run_ort(emitted, {name: np.asarray(x) for name, x in {**feeds, "seed": 1.0, "first_grad": 1.0}.items()})
    return float(found["a_grad"])


def test_second_derivative_of_the_cosine() -> None:
    assert abs(second(COS, "implicit", a=1.0, y0=1.0, cap=500) - TRUE_AA) < 1e-6
    assert abs(second(COS, "implicit(solver=gmres,fallback=nan)", a=1.0, y0=1.0, cap=500) - TRUE_AA) < 1e-6


def test_second_derivative_is_not_that_of_solver_iterations() -> None:
    """Of y = b / (1 - a), by a solver that needs two steps: differentiating those would give something else."""
    feeds = {"a": 0.5, "b": 1.0, "y0": 0.0, "tol": 1e-14, "cap": 200}
    assert abs(second(LINE, "implicit(solver=bicgstab,fallback=none)", **feeds) - 16) < 1e-9


def test_second_derivative_where_the_loop_did_not_converge() -> None:
    def slope(a: float) -> float:
        return float(gradients(COS, "taped", a=a, y0=1.0, cap=3)["a_grad"])

    difference = (slope(1 + 1e-6) - slope(1 - 1e-6)) / 2e-6
    assert abs(second(COS, "implicit", a=1.0, y0=1.0, cap=3) - difference) < 1e-7


def test_the_fallback_tapes_nothing_in_the_forward_pass() -> None:
    emitted = cfad.vjp(model(COS), plan="implicit").proto()
    loops = [node for node in emitted.graph.node if node.op_type in ("Loop", "Scan")]
    assert [node.name for node in loops if node.name == "loop"] == ["loop"]
    for node in loops:
        carries = len(node.input) - 2
        assert len(node.output) == carries, f"{node.name} stacks something"


def test_a_fixed_number_of_iterations_is_implicit_when_asked() -> None:
    """It has no tolerance to meet: one more iteration says whether it converged."""
    text = COS.replace("go = Greater (r, tol)", "go = Identity (on)")
    assert abs(gradients(text, a=1.0, y0=1.0, cap=200)["a_grad"] - TRUE_A) < 1e-6
    short = gradients(text, a=1.0, y0=1.0, cap=2)
    assert not short["loop_converged"]
    assert abs(short["a_grad"] - TWO_STEPS_A) < 1e-6


def test_what_is_no_fixed_point_is_refused_when_asked() -> None:
    text = COS.replace("p = Mul (s, a)", "k = Cast <to = 11> (i) q = Mul (s, a) p = Add (q, k)")
    with pytest.raises(cfad.PlanError, match="depends on the iteration number"):
        cfad.vjp(model(text), sites=["main/loop=implicit"])
    assert "implicit" not in str(cfad.plan(model(text), plan="implicit"))


def test_loose_tolerances_are_not_implicit_unasked() -> None:
    """The gradient of the loop as it ran and that of its limit differ as much as the tolerance allows."""
    assert str(cfad.plan(model(COS))).startswith("main/loop: implicit (")
    for tolerance in ("tol = Constant <value = double {1e-4}> ()", "tol = Identity (y0)"):
        text = COS.replace("tol = Constant <value = double {1e-13}> ()", tolerance)
        assert str(cfad.plan(model(text))).startswith("main/loop: taped")
        assert str(cfad.plan(model(text), plan="implicit")).startswith("main/loop: implicit (")


def test_the_report_says_what_the_initial_value_gets() -> None:
    (site,) = cfad.vjp(model(COS)).report.sites
    assert site.adjoint == "implicit"
    assert "its initial value gets no gradient" in site.reason


def test_metadata_of_the_node_decides() -> None:
    proto = model(COS)
    node = next(node for node in proto.graph.node if node.op_type == "Loop")
    node.metadata_props.add(key="onnx_cfad.adjoint", value="implicit(solver=gmres)")
    assert str(cfad.plan(proto)) == "main/loop: implicit(solver=gmres) (as asked)"
    assert str(cfad.plan(proto, plan="taped")).startswith("main/loop: taped")


def test_loops_inside_sites_say_nothing_and_that_is_said() -> None:
    example = CORPUS["fixed_points"]["fixed_point_in_each_step"]()
    found = cfad.vjp(example.model, implicit_outputs=True)
    assert any("is inside another site" in warning for warning in found.report.warnings)
    assert not [value.name for value in found.model.graph.outputs if "converged" in (value.name or "")]


@pytest.mark.parametrize("settings", ["solver=lu", "fallback=zero", "tol=2", "tol=-1", "max_iterations=-1", "depth=3"])
def test_bad_settings_are_refused(settings: str) -> None:
    with pytest.raises(cfad.PlanError):
        cfad.vjp(model(COS), sites=[f"main/loop=implicit({settings})"])


@pytest.mark.parametrize(("name", "site"), [("equilibrium", "main/Loop"), ("equilibrium_while", WHILE)])
def test_exported_equilibrium_is_implicit_and_right(name: str, site: str) -> None:
    reference = np.load(f"models/{name}.npz")
    found = cfad.vjp(f"models/{name}.onnx", wrt=["x", "recurrent.weight"], outputs=["y"])
    assert found.plan[site] == adjoint_from("implicit")
    emitted = found.proto()
    check_emitted(emitted)
    feeds = {"x": reference["in_x"].astype(np.float32), "y_grad": reference["cot_0"].astype(np.float32)}
    result = run_ort(emitted, feeds)
    for wrt, key in (("x", "implicit_x"), ("recurrent.weight", "implicitp_recurrent.weight")):
        expected = reference[key]
        error = np.linalg.norm(result[f"{wrt}_grad"] - expected) / np.linalg.norm(expected)
        assert error < 1e-5, f"{wrt}: {error}"
