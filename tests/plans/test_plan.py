"""Plans are printed, written, edited and given back; the automatic choice keeps within the memory it was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.plans.plan import adjoint_from, branches_from_json, plan_from_json, written
from tests.adjoint.agreement import all_makers
from tests.oracle import run_ort


def model(name: str):  # noqa: ANN201 - an onnx.ModelProto
    return all_makers()[name]().model


@pytest.mark.parametrize(
    "adjoint",
    [Taped(), Taped("float16", "carry"), Checkpointed(25), Checkpointed(7, 3), Routed(), Unrolled(), Unrolled(4)],
)
def test_written_adjoints_can_be_read(adjoint: object) -> None:
    assert adjoint_from(written(adjoint)) == adjoint  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text", ["", "tape", "checkpointed(", "checkpointed(segment=x)", "taped(segment=3)", "routed()x"]
)
def test_what_is_no_adjoint_is_refused(text: str) -> None:
    with pytest.raises(cfad.PlanError, match="For example|Did you mean 'taped'"):
        adjoint_from(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("checkpointed(segment=1e9)", "segment is '1e9', expected a whole number"),
        ("checkpointed(segment=0.5)", "segment is '0.5', expected a whole number"),
        ("implicit(tol=small)", "tol is 'small', expected a number"),
        ("checkpointed(segment=3, segment=4)", "segment is given twice"),
        ("taped(segment=3)", "'segment' is none of its settings, which are tape, keep"),
        (f"checkpointed(segment={10**21})", "Use a segment up to 1,000,000,000,000"),
        (f"unrolled(factor={10**21})", "up to 20,000 iterations"),
        pytest.param("unrolled(factor=" + "9" * 5000 + ")", r"factor is '9+\.\.\.9+', expected", id="digits"),
        (f"implicit(max_iterations={10**21})", "and a number of iterations"),
        ("checkpointed(segment=2, levels=9)", "2 to 8 levels"),
    ],
)
def test_a_setting_that_cannot_be_is_named(text: str, message: str) -> None:
    with pytest.raises(cfad.PlanError, match=message):
        adjoint_from(text)


def test_all_digits_of_a_tolerance_come_back() -> None:
    adjoint = adjoint_from("implicit(tol=1.23456789e-07)")
    assert written(adjoint) == "implicit(tol=1.23456789e-07)"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["main/loop"], "site 'main/loop': expected PATH=ADJOINT"),
        (["main/loop="], "expected PATH=ADJOINT"),
        (["=taped"], "expected PATH=ADJOINT"),
        (["main/loop_0=taped", "main/loop_0=checkpointed"], "site 'main/loop_0': two adjoints are asked for"),
    ],
)
def test_a_site_is_named_once_with_its_adjoint(entries: list[str], message: str) -> None:
    with pytest.raises(cfad.PlanError, match=message):
        cfad.plan(model("loop_static"), sites=entries)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 1}', "a plan without 'sites'"),
        ('{"version": 1, "sites": {"main/x": {}}}', "site 'main/x' without 'adjoint'"),
        ('{"version": 1, "sites": {"x": {"adjoint": "taped"}, "x": {"adjoint": "unrolled"}}}', "a key 'x' twice"),
    ],
)
def test_what_a_plan_lacks_is_named(text: str, message: str) -> None:
    with pytest.raises(cfad.PlanError, match=message):
        plan_from_json(text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"sites": 3}', '{"sites": {"main/x": {}}}', '{"sites": {"main/x": 3}}']
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(cfad.PlanError, match="expected the JSON"):
        plan_from_json(text)


def test_plan_goes_out_and_comes_back() -> None:
    plan = cfad.plan(model("loop_static"), plan="checkpointed", segment=2)
    again = plan_from_json(plan.to_json())
    assert again == {path: plan[path] for path in plan}
    edited = json.loads(plan.to_json())
    path = next(path for path in plan if isinstance(plan[path], Checkpointed))
    edited["sites"][path]["adjoint"] = "taped"
    assert cfad.vjp(model("loop_static"), plan=plan).plan[path] == Checkpointed(2)
    assert plan_from_json(json.dumps(edited))[path] == Taped()


def test_everything_is_taped_while_it_fits() -> None:
    assert all(isinstance(cfad.plan(model("loop_in_loop"))[path], Taped) for path in cfad.plan(model("loop_in_loop")))


def test_a_loop_that_does_not_fit_is_checkpointed() -> None:
    plan = cfad.plan(model("loop_long"), memory=1024)
    (decision,) = plan.decisions.values()
    assert isinstance(decision.adjoint, Checkpointed)
    assert decision.bytes is not None
    assert "the full tape takes" in decision.reason
    generous = cfad.plan(model("loop_long"), memory="1GiB")
    assert all(isinstance(generous[path], Taped) for path in generous)


def test_single_sites_can_be_decided() -> None:
    path = next(iter(cfad.plan(model("loop_long"))))
    plan = cfad.plan(model("loop_long"), sites=[f"{path}=checkpointed(segment=50)"])
    assert plan[path] == Checkpointed(50)
    assert plan.decisions[path].reason == "as asked"


@pytest.mark.parametrize("entry", ["main/nowhere=taped", "nonsense"])
def test_unknown_sites_are_refused(entry: str) -> None:
    with pytest.raises(cfad.PlanError):
        cfad.plan(model("loop_long"), sites=[entry])


def test_a_branch_cannot_be_taped() -> None:
    branch = model("if_constants_inside")
    path = next(iter(cfad.plan(branch)))
    with pytest.raises(cfad.PlanError, match="taped is not for If"):
        cfad.plan(branch, sites=[f"{path}=taped"])


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("heat", {"plan": "unrolled"}, "unrolled it would have 50,000 nodes, more than 20,000"),
        ("heat", {"sites": "main/Loop=unrolled(factor=7)"}, "factor 7 does not divide its 10000 trips"),
        ("gnmt_v2", {"plan": "unrolled"}, "a loop with dynamic trips cannot be unrolled"),
        ("gnmt_v2", {"sites": "main/decoder.Loop=implicit"}, "'c1.7' depends on the iteration number"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_when_it_is_made(
    path: str, options: dict[str, Any], message: str
) -> None:
    for function in (cfad.vjp, cfad.plan):
        with pytest.raises(cfad.PlanError, match=message):
            function(f"models/{path}.onnx", **options)


THREE_CHOICES = """<ir_version: 10, opset_import: ["": 21]> choices (float[4] x) => (float[4] y) <int64 three = {3}> {
    y = Loop (three, , x) <body = body (int64 i, bool going, float[4] h) => (bool again, float[4] next)
        <int64 one = {1}> {
        again = Identity (going)  first = Less (i, one)
        next = If (first) <then_branch = t () => (float[4] a) { a = Sin (h) },
                           else_branch = e () => (float[4] b) { c = Cos (h)  b = Mul (c, x) }>
    }>
}"""


@pytest.mark.parametrize(("budget", "adjoint"), [(20_000, Unrolled()), (24, Unrolled()), (17, Taped())])
def test_automatic_plan_writes_out_no_loop_that_would_be_refused(
    budget: int, adjoint: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("onnx_cfad.plans.choose", "onnx_cfad.adjoint.unrolled"):
        monkeypatch.setattr(f"{module}.NODE_BUDGET", budget)
    few = onnx.parser.parse_model(THREE_CHOICES)
    assert next(iter(cfad.plan(few).decisions.values())).adjoint == adjoint
    cfad.vjp(few)


UNEVEN = """<ir_version: 10, opset_import: ["": 21]> uneven (float[4] x, int64 trips) => (float[n] y) {
    y = Loop (TRIPS, , x) <body = body (int64 i, bool going, float[k] h) => (bool again, float[m] next)
        <int64[1] one = {1}, int64 two = {2}> {
        again = Identity (going)  a = Sin (h)  odd = Mod (i, two)  sizes = Reshape (odd, one)
        short = Add (sizes, one)  rows = Expand (a, short)  zero = Sub (one, one)
        next = Slice (rows, zero, short, zero)
    }>
}"""
LISTS = """<ir_version: 10, opset_import: ["": 21]> lists (float[4] x, int64 trips) => (float[n] y) {
    first = SequenceConstruct (x)
    all = Loop (TRIPS, , first) <body = body (int64 i, bool going, seq(float[4]) h) => (bool again, seq(float[4]) next)
        <int64 last = {-1}> {
        again = Identity (going)  a = SequenceAt (h, last)  b = Sin (a)  next = SequenceInsert (h, b)
    }>
    y = ConcatFromSequence <axis = 0> (all)
}"""


def long_loop(text: str, trips: int | None) -> onnx.ModelProto:
    """The model with a trip count that it fixes, or that only the run knows."""
    fixed = text.replace("TRIPS", "trips" if trips is None else "count")
    return onnx.parser.parse_model(
        fixed if trips is None else fixed.replace("y) {", f"y) <int64 count = {{{trips}}}> {{")
    )


@pytest.mark.parametrize("trips", [129, 1000, 16_384, 10**6, None])
def test_a_tape_that_is_a_sequence_is_kept_for_segments_of_at_most_128(trips: int | None) -> None:
    (adjoint,) = (decision.adjoint for decision in cfad.plan(long_loop(UNEVEN, trips)).decisions.values())
    assert isinstance(adjoint, Checkpointed)
    assert adjoint.segment <= 128
    assert (adjoint.segment == 0) == (trips is None)
    assert (trips or 0) <= 128**adjoint.levels


def test_a_short_sequence_is_one_tape() -> None:
    (adjoint,) = (decision.adjoint for decision in cfad.plan(long_loop(UNEVEN, 128)).decisions.values())
    assert adjoint == Taped()


def test_segments_of_a_loop_that_carries_a_sequence_are_at_most_128() -> None:
    (adjoint,) = (d.adjoint for d in cfad.plan(long_loop(LISTS, 100_000), plan="checkpointed").decisions.values())
    assert isinstance(adjoint, Checkpointed)
    assert 0 < adjoint.segment <= 128


@pytest.mark.parametrize("text", [UNEVEN, LISTS])
def test_segments_that_the_run_chooses_are_at_most_128(text: str) -> None:
    graph = cfad.vjp(long_loop(text, None), wrt=["x"], plan="checkpointed").proto().graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    least = [n for n in graph.node if n.op_type == "Min" and any(np.all(constants.get(i) == 128) for i in n.input)]
    assert len(least) == 1


def test_gradient_over_segments_of_sequences_is_that_of_one_sequence() -> None:
    feeds = {"x": np.linspace(0.1, 0.9, 4, dtype=np.float32), "trips": np.array(150), "y_grad": np.ones(2, np.float32)}
    found, expected = (
        run_ort(cfad.vjp(long_loop(UNEVEN, None), wrt=["x"], plan=plan).proto(), feeds)["x_grad"]
        for plan in ("auto", "taped")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("tape", ["float16", "bfloat16"])
@pytest.mark.parametrize("plan", ["auto", "taped"])
def test_a_narrow_tape_counts_half_the_bytes(tape: str, plan: str) -> None:
    (exact,), (narrow,) = (
        cfad.plan("models/heat.onnx", plan=plan, tape=asked).decisions.values() for asked in (None, tape)
    )
    assert exact.bytes == 2 * (narrow.bytes or 0)


def test_checkpoints_beside_a_narrow_tape_are_exact() -> None:
    (exact,), (narrow,) = (
        cfad.plan("models/heat.onnx", plan="checkpointed", segment=50, tape=tape).decisions.values()
        for tape in (None, "float16")
    )
    checkpoints, iteration = 1024 * 10_000 // 50, 2048
    assert exact.bytes == checkpoints + 50 * iteration
    assert narrow.bytes == checkpoints + 50 * iteration // 2


def test_what_fits_as_a_narrow_tape_is_taped() -> None:
    assert cfad.plan("models/heat.onnx", memory="12MiB", tape="float16")["main/Loop"] == Taped("float16")
    assert isinstance(cfad.plan("models/heat.onnx", memory="12MiB")["main/Loop"], Checkpointed)


@pytest.mark.parametrize("branches", [[], {"hot": "main/if_0/then"}, {"cold": [1]}, {"hot": ["main/if_0"]}])
def test_branches_of_a_plan_file_that_are_none_are_refused(branches: Any) -> None:
    text = json.dumps({**json.loads(cfad.plan(model("if_in_loop")).to_json()), "branches": branches})
    with pytest.raises(cfad.CfadError, match="hot and cold"):
        branches_from_json(text)


def test_plan_that_is_given_back_keeps_hot_and_cold_branches(tmp_path: Path) -> None:
    example = all_makers()["if_captures"]()
    plan = cfad.plan(example.model, profile=cfad.profile(example.model, example.feeds))
    assert len(plan.hot) == len(plan.cold) == 1
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    again = cfad.vjp(example.model, plan=tmp_path / "plan.json").plan
    assert (again.hot, again.cold) == (plan.hot, plan.cold)
