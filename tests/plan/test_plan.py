"""Plans are printed, written, edited and given back; the automatic choice keeps within the memory it was given."""

from __future__ import annotations

import json

import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.plan.plan import adjoint_from, plan_from_json, written
from tests.adjoint.agreement import all_makers


def model(name: str):  # noqa: ANN201 - an onnx.ModelProto
    return all_makers()[name]().model


@pytest.mark.parametrize("adjoint", [Taped(), Checkpointed(25), Checkpointed(7, 3), Routed(), Unrolled(), Unrolled(4)])
def test_written_adjoints_can_be_read(adjoint: object) -> None:
    assert adjoint_from(written(adjoint)) == adjoint  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text", ["", "tape", "checkpointed(", "checkpointed(segment=x)", "taped(segment=3)", "routed()x"]
)
def test_what_is_no_adjoint_is_refused(text: str) -> None:
    with pytest.raises(cfad.PlanError, match="For example"):
        adjoint_from(text)


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


def test_unrolling_is_refused_above_the_node_budget_with_the_number() -> None:
    with pytest.raises(cfad.PlanError, match=r"unrolled it would have [\d,]+ nodes, more than 20,000"):
        cfad.vjp("models/heat.onnx", plan="unrolled")
