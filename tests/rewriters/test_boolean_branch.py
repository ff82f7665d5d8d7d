"""An If that is an `and`, an `or` or a `not` becomes the operator; one that must not run unasked stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.boolean_branch import BooleanBranchPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators


def rewrite(text: str, feeds: dict[str, Any], *, modifies: bool = True) -> ir.Model:
    def make(model: ir.Model) -> BooleanBranchPass:
        infer_types(model)
        return BooleanBranchPass()

    return assert_pass_keeps_meaning(make, text, feeds, modifies=modifies)


def decision(first: str, second: str) -> str:
    """An If on p; a side is "true", "false" or the comparison k < n."""
    sides = {
        "true": "{0} = Identity (yes)",
        "false": "{0} = Constant <value = bool {{0}}> ()",
        "less": "{0} = Less (k, n)",
    }
    return f"""(bool p, int64 k, int64 n) => (bool y) <bool yes = {{1}}> {{ y = If (p) <
        then_branch = l () => (bool a) {{ {sides[first].format("a")} }},
        else_branch = r () => (bool b) {{ {sides[second].format("b")} }}> }}"""


EXPECTED = [
    ("less", "false", ["Less", "And"]),
    ("true", "less", ["Less", "Or"]),
    ("less", "true", ["Not", "Less", "Or"]),
    ("false", "less", ["Not", "Less", "And"]),
    ("true", "false", ["Identity"]),
    ("false", "true", ["Not"]),
]


@pytest.mark.parametrize(("first", "second", "expected"), EXPECTED)
def test_boolean_operators(first: str, second: str, expected: list[str]) -> None:
    for p in (True, False):
        for k in (1, 5):
            model = rewrite(decision(first, second), {"p": p, "k": np.int64(k), "n": np.int64(3)})
            assert operators(model) == expected


def test_conditions_of_loops_as_torchscript_exports_them() -> None:
    """`while change > 0.1 and k < 20`: the condition of the loop is an If in its body."""
    model = rewrite(
        """(double[2] x) => (double[2] y) <bool going = {1}, int64 most = {9999}, int64 zero = {0}, int64 one = {1},
        int64 limit = {20}, double small = {0.1}> {
        k, y = Loop (most, going, zero, x) <
            body = body (int64 i, bool c, int64 k0, double[2] h) => (bool again, int64 k1, double[2] next) {
                next = Sin (h)  d = Sub (h, next)  a = Abs (d)  m = ReduceMax <keepdims = 0> (a)
                k1 = Add (k0, one)
                large = Greater (m, small)  cast = Cast <to = 9> (large)
                again = If (cast) <then_branch = t () => (bool l) { l = Less (k1, limit) },
                                   else_branch = f () => (bool o) { o = Constant <value = bool {0}> () }>
            }> }""",
        {"x": np.asarray([1.2, 0.4])},
    )
    assert "If" not in operators(model)
    assert "And" in operators(model)


@pytest.mark.parametrize(
    "side",
    [
        "g = Gather (v, k)  a = Less (g, n)",
        "q = Div (k, n)  a = Less (q, n)",
        "r = RandomUniform <shape = [1]> ()  s = Squeeze (r)  c = Cast <to = 7> (s)  a = Less (c, n)",
    ],
)
def test_what_may_fail_or_draw_stays_behind_its_predicate(side: str) -> None:
    text = f"""(bool p, int64 k, int64 n, int64[3] v) => (bool y) <bool no = {{0}}> {{ y = If (p) <
        then_branch = l () => (bool a) {{ {side} }},
        else_branch = r () => (bool b) {{ b = Identity (no) }}> }}"""
    feeds = {"p": False, "k": np.int64(7), "n": np.int64(0), "v": np.arange(3)}
    rewrite(text, feeds, modifies=False)
