"""Whether a branch in a loop saves its residuals or is computed again, by bytes, operations and nodes, and why."""

from __future__ import annotations

import dataclasses

import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.plans import branch_choice
from onnx_cfad.plans.plan import Decision

SITE = "main/loop/body/choice"


def branch_in_loop(trips: int, then: str, orelse: str, decides: str = "s = ReduceSum <keepdims = 0> (h)") -> str:
    return f"""<ir_version: 10, opset_import: ["": 21]> g (float[8,8] x, float[8,8] w) => (float[8,8] y)
        <int64 n = {{{trips}}}, float zero = {{0}}> {{
        [loop] y = Loop (n, , x) <body = step (int64 i, bool go, float[8,8] h) => (bool on, float[8,8] next) {{
            on = Identity (go)
            {decides}
            p = Greater (s, zero)
            [choice] next = If (p) <
                then_branch = one () => (float[8,8] a) {{ {then} }},
                else_branch = two () => (float[8,8] b) {{ {orelse} }}
            >
        }}>
    }}"""


CHEAP = (
    "t = Sin (h)  u = Cos (t)  v = Sin (u)  a = Mul (v, w)",
    "q = Tanh (h)  r = Sin (q)  k = Cos (r)  b = Mul (k, w)",
)
PRODUCTS = ("t = MatMul (h, w)  u = MatMul (t, w)  v = MatMul (u, w)  a = Tanh (v)", CHEAP[1])


def decision(trips: int, branches: tuple[str, str], target: str = "ort") -> Decision:
    model = onnx.parser.parse_model(branch_in_loop(trips, *branches))
    return cfad.plan(model, target=target, plan="taped").decisions[SITE]


def test_a_cheap_branch_with_a_large_tape_is_computed_again() -> None:
    found = decision(2_000, CHEAP)
    assert str(found.adjoint) == "Routed(residuals='recomputed')"
    assert found.reason.startswith(
        "computed again for 8 more nodes: 1.9 operations for each byte of a tape of 2,048,000"
    )
    assert found.bytes == 2_000  # the mask alone


def test_a_branch_of_products_is_saved() -> None:
    found = decision(2_000, PRODUCTS)
    assert str(found.adjoint) == "Routed(residuals='saved')"


def test_a_small_tape_is_saved() -> None:
    assert str(decision(100, CHEAP).adjoint) == "Routed(residuals='saved')"


def test_a_branch_whose_residuals_are_few_beside_what_enters_it_is_saved() -> None:
    one = ("a = Sin (h)", "b = Cos (h)")
    assert str(decision(20_000, one).adjoint) == "Routed(residuals='saved')"


def test_a_branch_of_many_nodes_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "recomputed" in str(decision(2_000, CHEAP).adjoint)
    rules = dataclasses.replace(branch_choice.BRANCHES["ort"], nodes=7)
    monkeypatch.setitem(branch_choice.BRANCHES, "ort", rules)
    assert str(decision(2_000, CHEAP).adjoint) == "Routed(residuals='saved')"


def test_rules_are_told_by_target() -> None:
    assert str(decision(2_000, CHEAP, "llvm").adjoint) == "Routed(residuals='recomputed')"
    assert str(decision(2_000, CHEAP, "cuda").adjoint) == "Masked()"


def test_a_decision_over_a_vector_is_named_and_left_alone() -> None:
    decides = "v = Greater (h, zero)  m = Cast <to = 1> (v)  s = ReduceMax <keepdims = 0> (m)"
    model = onnx.parser.parse_model(branch_in_loop(3, *CHEAP, decides))
    found = cfad.plan(model).decisions[SITE]
    assert "its predicate reduces 'v', which could be a mask for each element" in found.reason
    assert str(found.adjoint).startswith("Routed")


def test_a_decision_over_a_scalar_is_not_named() -> None:
    model = onnx.parser.parse_model(branch_in_loop(3, *CHEAP))
    assert "for each element" not in cfad.plan(model).decisions[SITE].reason
