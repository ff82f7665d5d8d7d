"""Values of unknown shape: told as unknown, and counted by a stated default where plans are chosen."""

from __future__ import annotations

import json

import onnx
import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.plans.plan import plan_from_json
from onnx_cfad.report.tables import plan_table
from onnx_cfad.report.terminal import show
from tests.onnx_text import model

UNSIZED = """g (float[3] x, int64[R] s, int64 n, bool up) => (float y) {
    l = Loop (n, , x) <body = body (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
        d = Identity (c)  r = Reshape (a, s)  e = Exp (r)  k = ReduceSum <keepdims = 0> (e)  b = Mul (a, k)
    }>
    r = Reshape (l, s)
    t = If (up) <then_branch = one () => (float u) { u = Exp (r) }, else_branch = two () => (float v) {
        h = Sin (r)  v = Tanh (h) }>
    y = ReduceSum <keepdims = 0> (t)
}"""
"""A loop and a branch, both with values whose rank only the run knows; [3], [3] and [] an iteration are known."""


def unsized() -> onnx.ModelProto:
    proto = model(UNSIZED)
    branches = next(node for node in proto.graph.node if node.op_type == "If").attribute
    for branch in branches:
        branch.g.output[0].type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize(("name", "told"), [("taped", f"at least {100 * (12 + 12 + 4)}"), ("auto", "at least 2800")])
def test_values_of_unknown_shape_are_not_no_bytes(name: str, told: str) -> None:
    plan = cfad.plan(unsized(), plan=name, trips=100)
    sites = json.loads(plan.to_json())["sites"]
    assert sites["main/loop_0"]["bytes"] == told
    assert sites["main/if_0"]["bytes"] == "unknown"
    shown = cfad.vjp(unsized(), wrt=["x"], plan=name, trips=100).report.sites
    assert [site.bytes for site in shown] == [told, "unknown"]
    assert list(plan_from_json(plan.to_json())) == list(plan)


def test_choice_counts_a_default_for_an_unknown_shape() -> None:
    fits = 100 * (12 + 12 + 4 + 4096)
    for memory, kind in ((fits, Taped), (fits - 1, Checkpointed)):
        decision = cfad.plan(unsized(), trips=100, memory=memory).decisions["main/loop_0"]
        assert isinstance(decision.adjoint, kind)
        assert "what has no known shape counts 4,096 bytes" in decision.reason


def test_table_says_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    show(plan_table(cfad.plan(unsized(), trips=100)))
    printed = capsys.readouterr().out
    assert "taped" in printed
    assert "at least 2.7 KiB" in printed
    assert "unknown" in printed
