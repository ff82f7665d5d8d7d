"""Profiles count what runs did, change nothing, and steer plans; one of another model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.profile import BranchCount, LoopCount, profile_from_json
from onnx_cfad.graph.regions import control_flow
from onnx_cfad.instrument import add_counters
from onnx_cfad.model import load, normalise
from onnx_cfad.options import Options
from onnx_cfad.simplify import simplify_branches
from tests.adjoint.agreement import all_makers, run
from tests.cli.calls import call
from tests.corpus import Example

# A while loop whose body branches on the carry and holds a loop of as many iterations as the outer one has done.
NESTED = """<ir_version: 10, opset_import: ["": 21]> nested (double x, double by, bool p) => (double y)
<int64 most = {100}, bool going = {1}, double limit = {10}, double small = {3}, int64 one = {1}> {
    y = Loop (most, going, x) <body = body (int64 i, bool c, double h) => (bool again, double next) {
        q = Less (h, small)
        grown = If (q) <
            then_branch = low () => (double a) { a = Add (h, by) },
            else_branch = high () => (double b) {
                b = If (p) <then_branch = t () => (double d) { d = Mul (h, by) },
                            else_branch = e () => (double f) { g = Mul (by, by)  f = Add (h, g) }> }>
        next = Loop (i, , grown) <body = inner (int64 j, bool k, double u) => (bool l, double v) {
            l = Identity (k)  s = Sin (u)  z = Sub (s, s)  v = Add (u, z) }>
        again = Less (next, limit)
    }>
}"""


def expected(x: float, by: float, p: bool) -> dict[str, int]:
    """The same in Python, counted."""
    found: dict[str, int] = dict.fromkeys(("low", "high", "t", "e", "outer", "inner", "most"), 0)
    for i in range(100):
        found["outer"] += 1
        found["inner"] += i
        found["most"] = max(found["most"], i)
        low = x < 3
        found["low" if low else "high"] += 1
        if not low:
            found["t" if p else "e"] += 1
        x = x + by if low else x * by if p else x + by * by
        if not x < 10:
            break
    return found


def test_counts_are_those_of_the_same_program_in_python() -> None:
    model = onnx.parser.parse_model(NESTED)
    inputs = [(0.5, 1.1, True), (0.5, 1.3, False), (20.0, 1.5, True), (2.0, 1.2, False)]
    found = cfad.profile(model, ({"x": np.float64(x), "by": np.float64(b), "p": np.asarray(p)} for x, b, p in inputs))
    counts = [expected(*entry) for entry in inputs]
    total = {key: sum(count[key] for count in counts) for key in counts[0]}
    loop = "main/loop_0"
    assert found.runs == 4
    assert found.branches == {
        f"{loop}/body/if_0": BranchCount(total["low"], total["high"]),
        f"{loop}/body/if_0/else/if_0": BranchCount(total["t"], total["e"]),
    }
    assert found.loops == {
        loop: LoopCount(4, total["outer"], max(count["outer"] for count in counts)),
        f"{loop}/body/loop_0": LoopCount(total["outer"], total["inner"], max(count["most"] for count in counts)),
    }
    assert set(found.seconds) >= {"main", f"{loop}/body", f"{loop}/body/if_0/then", f"{loop}/body/loop_0/body"}
    assert found.seconds[f"{loop}/body"] > 0


@pytest.mark.parametrize(
    "name",
    ["if_in_if_in_loop", "if_loop_if_loop", "if_in_scan", "loop_in_if_not_taken", "loop_zero_trips", "if_four_deep"],
)
def test_counting_leaves_the_outputs_as_they_are(name: str) -> None:
    example: Example = all_makers()[name]()
    model = normalise(load(example.model))
    simplify_branches(model, Options())
    counters = add_counters(model, control_flow(model))
    from onnx_ir import to_proto

    proto = to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    expected_outputs = run(example.model, example.feeds, "ORT_DISABLE_ALL")
    found = run(proto, example.feeds, "ORT_DISABLE_ALL")
    for output, value in expected_outputs.items():
        np.testing.assert_array_equal(found[output], value)
    assert found[counters.sums_name].shape == (len(counters.sums),)


def profiled(model: onnx.ModelProto, taken: float, runs: int = 20) -> cfad.Profile:
    rng = np.random.default_rng(0)
    feeds: Any = (
        {"x": rng.standard_normal(3), "w": rng.standard_normal(3), "p": np.asarray(k < taken * runs)}
        for k in range(runs)
    )
    return cfad.profile(model, feeds)


@pytest.mark.parametrize(
    ("taken", "residuals", "reason", "cold"),
    [
        (1.0, "then_saved", "else never taken in 20 executions", ("main/if_0/else",)),
        (0.0, "else_saved", "then never taken in 20 executions", ("main/if_0/then",)),
        (0.95, "then_saved", "then taken in 95.0% of 20 executions", ()),
        (0.5, "saved", "then taken in 50% of 20 executions", ()),
    ],
)
def test_the_hot_branch_is_saved_and_the_cold_one_recomputed(
    taken: float, residuals: str, reason: str, cold: tuple[str, ...]
) -> None:
    example = all_makers()["if_then_taken"]()
    profile = profiled(example.model, taken)
    plan = cfad.plan(example.model, profile=profile)
    assert str(plan["main/if_0"]) == f"Routed(residuals='{residuals}')"
    assert plan.decisions["main/if_0"].reason == reason
    assert plan.cold == cold
    assert plan.hot[0] == f"main/if_0/{'then' if taken >= 0.5 else 'else'}"
    gradient = cfad.vjp(example.model, wrt=["x", "w"], profile=profile)
    assert [f"never taken in the profile: {path}" for path in cold] == list(gradient.report.warnings)
    plain = cfad.vjp(example.model, wrt=["x", "w"]).proto()
    for p in (True, False):
        feeds = {**example.feeds, "p": np.asarray(p), "y_grad": np.asarray([1.0, -2.0, 0.5])}
        for name, value in run(plain, feeds, "ORT_ENABLE_ALL").items():
            np.testing.assert_array_equal(run(gradient.proto(), feeds, "ORT_ENABLE_ALL")[name], value)


def test_measured_trip_counts_are_planned_with() -> None:
    model = onnx.parser.parse_model(NESTED.replace("int64 most = {100}", "int64 most = {100000}"))
    found = cfad.profile(model, {"x": np.float64(0.5), "by": np.float64(1.1), "p": np.asarray(True)})
    assumed, measured = cfad.plan(model), cfad.plan(model, profile=found)
    assert assumed.decisions["main/loop_0"].reason == "the full tape fits: 1,000 trips assumed"
    most = expected(0.5, 1.1, True)["outer"]
    assert measured.decisions["main/loop_0"].reason == f"the full tape fits: {most} trips"
    assert (measured.decisions["main/loop_0"].bytes or 0) < (assumed.decisions["main/loop_0"].bytes or 0)


def test_a_profile_goes_out_and_comes_back_and_belongs_to_one_model() -> None:
    example, other = all_makers()["if_then_taken"](), all_makers()["if_else_taken"]()
    profile = profiled(example.model, 0.5)
    assert profile_from_json(profile.to_json(), profile.model) == profile
    with pytest.raises(cfad.PlanError, match="of another model"):
        cfad.plan(other.model, profile=profile)
    with pytest.raises(cfad.PlanError, match="of another model"):
        cfad.vjp(other.model, profile=profile)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "model": "x", "runs": -1}'])
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(cfad.PlanError, match="expected the JSON"):
        profile_from_json(text, "x")


def test_profile_plan_transform_from_the_command_line(tmp_path: Path) -> None:
    example = all_makers()["if_then_taken"]()
    model, folder, profile = tmp_path / "model.onnx", tmp_path / "inputs", tmp_path / "profile.json"
    onnx.save(example.model, model)
    folder.mkdir()
    for k in range(3):
        np.savez(folder / f"{k}.npz", **example.feeds)
    result = call("profile", model, "--inputs", folder, "--inputs", folder / "0.npz", "-o", profile)
    assert result.exit_code == 0
    assert "then 4, else 0" in result.stdout
    assert "never taken: main/if_0/else" in result.stdout
    assert json.loads(profile.read_text())["branches"]["main/if_0"] == {"then": 4, "otherwise": 0}
    assert "routed(residuals=then_saved)" in call("plan", model, "--profile", profile).stdout
    done = call("transform", model, "--profile", profile)
    assert done.exit_code == 0
    assert "never taken in the profile: main/if_0/else" in done.stdout
    assert call("validate", model, model.with_name("model.grad.onnx")).exit_code == 0


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    example = all_makers()["if_then_taken"]()
    model = tmp_path / "model.onnx"
    onnx.save(example.model, model)
    np.savez(tmp_path / "x.npz", **example.feeds)
    (tmp_path / "empty").mkdir()
    for arguments in (
        ("profile", model, "--inputs", tmp_path / "none.npz"),
        ("profile", model, "--inputs", tmp_path / "empty"),
        ("profile", model, "--inputs", tmp_path / "x.npz", "-o", model),
        ("profile", model, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "x.npz"),
        ("plan", model, "--profile", tmp_path / "none.json"),
        ("plan", model, "--profile", tmp_path / "x.npz"),
        ("plan", model, "--target", "abacus"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output
