"""Bodies of hot branches are compiled first, those of branches that no run takes when a run meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import PlanError, TargetError
from onnx_cfad.graph.profile import Profile
from onnx_cfad.model import load
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.branch_order import BranchOrder, branch_order
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm.body_order import Schedule, schedule
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.specialise import meet
from tests.cli.calls import call

BUILDS = [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]

# Each token goes to one of three experts, until one is large: the host runs such a loop. The first If has no name and a
# constant predicate: simplification removes it, so the numbers of nodes without a name are not those of the paths.
MODEL = """<ir_version: 8, opset_import: ["": 18]> experts (float[6] x, float[6, 2] w) => (float[2] h, float[6, 2] y)
<bool yes = {1}, float one = {1}, float two = {2}, float large = {9}, int64 n = {6}, float[2] zero = {0, 0}> {
    u = If (yes) <
        then_branch = t () => (float[6] a) { a = Mul (x, two) },
        else_branch = e () => (float[6] b) { b = Neg (x) }>
    h, y = Loop (n, yes, zero) <body = token (int64 i, bool on, float[2] h0) => (bool again, float[2] h1, float[2] z) {
        r = Gather (u, i)
        v = Gather (w, i)
        again = Less (r, large)
        first = Less (r, one)
        z = If (first) <
            then_branch = one_ () => (float[2] p) { p1 = Mul (v, r)  p = Sin (p1) },
            else_branch = rest () => (float[2] q) {
                second = Less (r, two)
                q = If (second) <
                    then_branch = two_ () => (float[2] s) { s1 = Add (v, r)  s = Tanh (s1) },
                    else_branch = three () => (float[2] d) { d1 = Mul (v, v)  d = Mul (d1, r) }>
            }>
        h1 = Add (h0, z)
    }>
}"""
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
MOSTLY_SECOND = {"x": np.array([0.75, 0.75, 0.75, 0.75, 0.75, 0.25], np.float32), "w": W}
MOSTLY_FIRST = {"x": np.array([0.25, 0.25, 0.25, 0.25, 0.75, 0.25], np.float32), "w": W}
WITH_THIRD = {"x": np.array([1.5, 0.25, 0.25, 0.25, 0.75, 0.25], np.float32), "w": W}
OUTER = "main/loop_0/body/if_0"
FIRST, OTHER, SECOND, THIRD = (f"{OUTER}/{end}" for end in ("then", "else", "else/if_0/then", "else/if_0/else"))
BY_PROFILE = [FIRST, OTHER, SECOND]


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


def profiled(*feeds: dict[str, Any]) -> Profile:
    return cfad.profile(model(), list(feeds))


def with_seed(feeds: dict[str, Any]) -> dict[str, Any]:
    return {**feeds, "h_grad": np.ones(2, np.float32), "y_grad": np.ones((6, 2), np.float32)}


def scheduled(source: Any, feeds: dict[str, Any], profile: Profile | None) -> tuple[Schedule, BranchOrder]:
    compiled = load(source)
    order = branch_order(compiled, None if profile is None else profile.to_json())
    parts = partition(compiled)
    return schedule(parts, meet(parts, feeds)[0], order), order


def sides(found: Schedule) -> list[str]:
    """The branches of the bodies that are compiled ahead, in order, without repetition."""
    return list(dict.fromkeys(entry.side for entry in found.ahead if entry.side))


def test_bodies_of_a_gradient_follow_the_profile_of_its_primal() -> None:
    """The sample inputs take the second expert most often, the profile the first; forward and reverse bodies alike."""
    gradient = cfad.vjp(model()).proto()
    found, order = scheduled(gradient, with_seed(MOSTLY_SECOND), profiled(MOSTLY_FIRST, MOSTLY_FIRST))
    branches = [entry.side for entry in found.ahead if entry.side]
    assert branches.count(FIRST) >= 2
    assert branches == sorted(branches, key=BY_PROFILE.index)
    assert {entry.taken for entry in found.ahead if entry.side == FIRST} == {10}
    assert order.origin == "the profile"
    first_use = [name for name in partition(load(gradient)).bodies if name in found.on_first_use]
    assert len(first_use) == len(found.on_first_use) >= 2  # of the third expert, forward and back


def test_without_a_profile_what_runs_most_often_goes_first() -> None:
    gradient = cfad.vjp(model()).proto()
    for feeds, expected in ((MOSTLY_SECOND, [OTHER, SECOND, FIRST]), (MOSTLY_FIRST, BY_PROFILE)):
        found, order = scheduled(gradient, with_seed(feeds), None)
        assert sides(found) == expected
        assert [entry.calls for entry in found.ahead] == sorted((e.calls for e in found.ahead), reverse=True)
        assert order == BranchOrder()


@pytest.mark.parametrize("given_back", [False, True])
def test_plan_that_a_gradient_carries_orders_its_bodies(given_back: bool) -> None:
    """A gradient that was made with a profile needs no other; so does one made with the plan that came of it."""
    plan = {"plan": cfad.plan(model(), profile=profiled(MOSTLY_FIRST))} if given_back else {}
    further = {} if given_back else {"profile": profiled(MOSTLY_FIRST)}
    gradient = cfad.vjp(model(), **plan, **further).proto()  # type: ignore[arg-type]
    found, order = scheduled(gradient, with_seed(MOSTLY_SECOND), None)
    assert sides(found) == BY_PROFILE
    assert order.origin == "the gradient's plan"
    assert THIRD in order.cold


def test_profile_of_the_compiled_model_itself() -> None:
    found, _ = scheduled(model(), MOSTLY_SECOND, profiled(MOSTLY_FIRST))
    assert sides(found) == BY_PROFILE


def test_hot_branch_that_the_sample_inputs_do_not_take_is_compiled_ahead() -> None:
    never = {"x": np.full(6, 0.25, np.float32), "w": W}
    found, _ = scheduled(model(), never, profiled(MOSTLY_SECOND))
    assert [(entry.side, entry.calls) for entry in found.ahead if entry.side == SECOND] == [(SECOND, 0)]
    assert sides(found) == [OTHER, SECOND, FIRST]


def test_branch_that_the_samples_take_and_the_profile_does_not_is_left_to_its_use() -> None:
    found, _ = scheduled(model(), WITH_THIRD, profiled(MOSTLY_FIRST))
    assert THIRD not in sides(found)


def test_gradient_of_a_gradient_is_marked_anew() -> None:
    """The profile of a first gradient names the branches of that one, forward and reverse."""
    first = cfad.vjp(model()).proto()
    profile = cfad.profile(first, with_seed(MOSTLY_FIRST))
    second = cfad.vjp(first, wrt=["x"], outputs=["x_grad"]).proto()
    order = branch_order(load(second), profile.to_json())
    parts = partition(load(second))
    assert set(parts.sites.values()) <= set(profile.branches)
    assert len(set(parts.sites.values())) > 2
    assert set(order.hot) == {f"{path}/{side}" for path, c in profile.branches.items()
                              for side, n in (("then", c.then), ("else", c.otherwise)) if n}  # fmt: skip


def test_profile_of_another_model_is_refused() -> None:
    other = onnx.parser.parse_model(MODEL.replace("p = Sin (p1)", "p = Cos (p1)"))
    profile = cfad.profile(other, MOSTLY_FIRST).to_json()
    for compiled, words in ((model(), "not of this one"), (cfad.vjp(model()).proto(), "was differentiated from")):
        with pytest.raises(PlanError, match=words):
            branch_order(load(compiled), profile)


def test_metadata_that_no_transform_has_written_is_refused() -> None:
    for text in ('{"branches": {"hot": 1}}', "no JSON", "[]", '{"branches": []}'):
        compiled = load(model())
        compiled.metadata_props["onnx_cfad.plan"] = text
        with pytest.raises(PlanError, match=r"onnx_cfad\.plan"):
            branch_order(compiled, None)


@pytest.mark.parametrize("build", BUILDS)
def test_manifest_has_the_order_and_a_cold_body_is_absent_until_it_is_met(
    build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "profile.json").write_text(profiled(MOSTLY_FIRST).to_json(), encoding="utf-8")
    cfad.vjp(model()).save(tmp_path / "g.onnx")
    np.savez(tmp_path / "in.npz", **with_seed(MOSTLY_SECOND))
    np.savez(tmp_path / "third.npz", **with_seed(WITH_THIRD))
    words = ["compile", str(tmp_path / "g.onnx"), "--target", "llvm", "--with", build, "-o", str(tmp_path / "out")]
    done = call(*words, "--profile", str(tmp_path / "profile.json"), "--inputs", str(tmp_path / "in.npz"))
    assert done.exit_code == 0, done.output
    program = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["program"]
    branches = [entry["branch"] for entry in program["ahead"] if entry["branch"]]
    assert branches == sorted(branches, key=BY_PROFILE.index)
    assert {(e["branch"], e["taken"]) for e in program["ahead"] if e["branch"]} == {(FIRST, 5), (OTHER, 1), (SECOND, 1)}
    assert f"{len(program['ahead'])} bodies are compiled, hot branches first by the profile" in " ".join(
        done.output.split()
    )
    cold = {name: program["stems"][name] for name in program["on_first_use"]}
    assert len(cold) == {"relay": 2, "relax": 1}[build]  # with Relax the reverse loop is one function
    bodies = tmp_path / "out" / "bodies"
    assert not [path for stem in cold.values() for path in bodies.glob(f"{stem}-*.so")]
    arguments = ["run", str(tmp_path / "out"), "--inputs", str(tmp_path / "third.npz"), "-o", str(tmp_path / "y.npz")]
    first, second = json.loads(call(*arguments, "--json").output), json.loads(call(*arguments, "--json").output)
    assert set(first["compiled"]) <= set(cold)
    assert first["compiled"]
    assert second["compiled"] == []
    assert all(list(bodies.glob(f"{cold[name]}-*.so")) for name in first["compiled"])
    expected = Session(cfad.vjp(model()).proto()).run(with_seed(WITH_THIRD))
    with np.load(tmp_path / "y.npz") as results:
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.relax
def test_profile_of_another_model_is_refused_by_compile(tmp_path: Path) -> None:
    other = onnx.parser.parse_model(MODEL.replace("p = Sin (p1)", "p = Cos (p1)"))
    text = cfad.profile(other, MOSTLY_FIRST).to_json()
    with pytest.raises(PlanError, match="another model"):
        compile_model(model(), "llvm", tmp_path / "out", feeds=MOSTLY_FIRST, options=Options("relax", profile=text))
    assert not list(tmp_path.iterdir())
    with pytest.raises(TargetError, match="llvm alone"):
        compile_model(model(), "cuda", tmp_path / "out", feeds=MOSTLY_FIRST, options=Options("relax", profile=text))


@pytest.mark.relax
def test_artifact_counts_what_a_run_compiles() -> None:
    profile = profiled(MOSTLY_FIRST)
    artifact = cfad.compile(model(), target="llvm", build="relax", feeds=MOSTLY_FIRST, profile=profile)
    assert artifact.manifest.form.startswith("a host program")
    artifact.run(MOSTLY_SECOND)
    assert artifact.compiled_on_use == {}
    artifact.run(WITH_THIRD)
    assert list(artifact.compiled_on_use.values()) == [1]
