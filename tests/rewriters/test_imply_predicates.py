"""Inside a branch, its predicate is known, and so is what follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.imply_predicates import ImplyPredicatesPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning

X = np.asarray([0.3, -0.7, 1.1])


def imply(text: str, feeds: dict[str, Any], *, modifies: bool = True) -> ir.Model:
    def make(model: ir.Model) -> ImplyPredicatesPass:
        infer_types(model)
        return ImplyPredicatesPass()

    return assert_pass_keeps_meaning(make, text, feeds, modifies=modifies)


def nested(outer: str, inner: str, *, side: str = "then") -> str:
    """An If on ``outer`` with an If on ``inner`` in one of its branches; p, q, a, b are inputs."""
    decided = f"""c = If ({inner}) <
        then_branch = t () => (double[3] d) {{ d = Sin (x) }}, else_branch = e () => (double[3] f) {{ f = Cos (x) }}>"""
    plain = "c = Tanh (x)"
    first, second = (decided, plain) if side == "then" else (plain, decided)
    return f"""(double[3] x, bool p, bool q, double a, double b) => (double[3] y) {{
        np = Not (p)  pq = And (p, q)  por = Or (p, q)  again = Identity (p)
        gt = Greater (a, b)  lt = Less (b, a)  ge = GreaterOrEqual (a, b)  other = Less (a, b)  le = LessOrEqual (a, b)
        eq = Equal (a, b)
        y = If ({outer}) <
            then_branch = l () => (double[3] c) {{ {first} }},
            else_branch = r () => (double[3] c) {{ {second} }}> }}"""


IMPLIED = [
    ("p", "p", "then", True),
    ("p", "p", "else", False),
    ("p", "np", "then", False),
    ("np", "p", "then", False),
    ("np", "p", "else", True),
    ("p", "again", "then", True),
    ("pq", "q", "then", True),
    ("por", "p", "else", False),
    ("p", "por", "then", True),
    ("p", "pq", "else", False),
    ("gt", "lt", "then", True),
    ("gt", "ge", "then", True),
    ("gt", "other", "then", False),
    ("gt", "eq", "then", False),
    ("ge", "gt", "else", False),
    ("eq", "gt", "then", False),
]


@pytest.mark.parametrize(("outer", "inner", "side", "truth"), IMPLIED)
def test_implied_predicates_become_constants(outer: str, inner: str, side: str, truth: bool) -> None:
    for p, q, a, b in ((True, True, 2.0, 1.0), (False, True, 1.0, 2.0), (True, False, 1.0, 1.0)):
        feeds = {"x": X, "p": p, "q": q, "a": a, "b": b}
        model = imply(nested(outer, inner, side=side), feeds)
        node = next(n for n in model.graph.all_nodes() if n.op_type == "If" and n.graph is not model.graph)
        tensor = ir.convenience.get_const_tensor(node.inputs[0]) if node.inputs[0] is not None else None
        assert tensor is not None
        assert bool(tensor.numpy()) is truth


@pytest.mark.parametrize(
    ("outer", "inner", "side"),
    [("p", "q", "then"), ("por", "p", "then"), ("pq", "p", "else"), ("gt", "le", "else"), ("gt", "other", "else")],
)
def test_what_does_not_follow_stays(outer: str, inner: str, side: str) -> None:
    """That a > b is false says nothing about a <= b where one of them is NaN."""
    imply(nested(outer, inner, side=side), {"x": X, "p": False, "q": True, "a": np.nan, "b": 1.0}, modifies=False)


def test_the_same_comparison_again_is_known() -> None:
    model = imply(
        """(double[3] x, double a) => (double[3] y) <double zero = {0}> {
        p = Greater (a, zero)
        y = If (p) <
            then_branch = l () => (double[3] c) {
                none = Constant <value = double {0}> ()  q = Greater (a, none)
                c = If (q) <then_branch = t () => (double[3] d) { d = Sin (x) },
                            else_branch = e () => (double[3] f) { f = Cos (x) }> },
            else_branch = r () => (double[3] b) { b = Tanh (x) }> }""",
        {"x": X, "a": 0.5},
    )
    inner = next(n for n in model.graph.all_nodes() if n.op_type == "If" and n.graph is not model.graph)
    assert inner.inputs[0] is not None
    assert inner.inputs[0].is_initializer()


def test_masks_and_loops_inside_a_branch_know_too() -> None:
    model = imply(
        """(double[3] x, bool p) => (double[3] y) <int64 n = {3}> {
        y = If (p) <
            then_branch = l () => (double[3] c) {
                c = Loop (n, , x) <body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next) {
                    again = Identity (going)  s = Sin (h)  next = Where (p, s, x) }> },
            else_branch = r () => (double[3] b) { b = Tanh (x) }> }""",
        {"x": X, "p": True},
    )
    where = next(n for n in model.graph.all_nodes() if n.op_type == "Where")
    assert where.inputs[0] is not None
    assert where.inputs[0].is_initializer()
