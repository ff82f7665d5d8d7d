"""An If with a known predicate becomes the branch that runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.fold_branch import FoldConstantBranchPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.asarray([0.3, -0.7, 1.1])


def fold(text: str, feeds: dict[str, Any], *, modifies: bool = True) -> ir.Model:
    def make(model: ir.Model) -> FoldConstantBranchPass:
        return FoldConstantBranchPass(infer_types(model).constants)

    return assert_pass_keeps_meaning(make, text, feeds, modifies=modifies)


@pytest.mark.parametrize(("flag", "expected"), [(1, ["Sin", "Mul"]), (0, ["Tanh"])])
def test_constant_predicate_leaves_the_live_branch(flag: int, expected: list[str]) -> None:
    model = fold(
        f"""(double[3] x) => (double[3] y) <bool p = {{{flag}}}> {{
        y = If (p) <
            then_branch = l () => (double[3] a) {{ s = Sin (x)  a = Mul (s, x) }},
            else_branch = r () => (double[3] b) {{ b = Tanh (x) }}>
    }}""",
        {"x": X},
    )
    assert operators(model) == expected


def test_predicate_from_a_known_shape_folds() -> None:
    model = fold(
        """(double[2, 3] x) => (double[2, 3] y) <int64 two = {2}> {
        shape = Shape (x)
        rank = Size (shape)
        p = Equal (rank, two)
        y = If (p) <
            then_branch = l () => (double[2, 3] a) { a = Sin (x) },
            else_branch = r () => (double[2, 3] b) { b = Tanh (x) }>
    }""",
        {"x": np.ones((2, 3))},
    )
    assert "If" not in operators(model)
    assert "Sin" in operators(model)


def test_predicate_from_an_input_stays() -> None:
    text = """(double[3] x, bool p) => (double[3] y) {
        y = If (p) <
            then_branch = l () => (double[3] a) { a = Sin (x) },
            else_branch = r () => (double[3] b) { b = Tanh (x) }>
    }"""
    fold(text, {"x": X, "p": True}, modifies=False)


def test_live_branch_that_hands_an_outer_value_through() -> None:
    model = fold(
        """(double[3] x) => (double[3] y) <bool p = {1}> {
        y = If (p) <
            then_branch = l () => (double[3] a) { a = Identity (x) },
            else_branch = r () => (double[3] b) { b = Tanh (x) }>
    }""",
        {"x": X},
    )
    assert operators(model) == ["Identity"]


def test_initializers_of_the_live_branch_move_out() -> None:
    model = fold(
        """(double[3] x) => (double[3] y) <bool p = {1}> {
        y = If (p) <
            then_branch = l () => (double[3] a) <double[3] k = {1, 2, 3}> { a = Mul (x, k) },
            else_branch = r () => (double[3] b) { b = Tanh (x) }>
    }""",
        {"x": X},
    )
    assert "k" in model.graph.initializers


def test_branches_within_the_live_branch_fold_too() -> None:
    model = fold(
        """(double[3] x, bool o) => (double[3] y) <bool p = {1}, bool q = {0}> {
        y = If (p) <
            then_branch = l () => (double[3] a) {
                m = If (q) <
                    then_branch = ll () => (double[3] e) { e = Neg (x) },
                    else_branch = lr () => (double[3] f) { f = Sin (x) }>
                a = If (o) <
                    then_branch = ml () => (double[3] g) { g = Mul (m, x) },
                    else_branch = mr () => (double[3] h) { h = Add (m, x) }>
            },
            else_branch = r () => (double[3] b) { b = Tanh (x) }>
    }""",
        {"x": X, "o": True},
    )
    assert operators(model) == ["Sin", "If", "Mul", "Add"]


def test_branch_inside_a_loop_body_folds() -> None:
    model = fold(
        """(double[3] x, int64 n) => (double[3] y) <bool p = {0}> {
        y = Loop (n, , x) <body = b (int64 i, bool c, double[3] h) => (bool d, double[3] g) {
            d = Identity (c)
            g = If (p) <
                then_branch = l () => (double[3] a) { a = Neg (h) },
                else_branch = r () => (double[3] e) { s = Sin (h)  e = Mul (s, x) }>
        }>
    }""",
        {"x": X, "n": 3},
    )
    assert operators(model) == ["Loop", "Identity", "Sin", "Mul"]


def test_several_outputs_of_one_value() -> None:
    fold(
        """(double[3] x) => (double[3] y, double[3] z) <bool p = {0}> {
        y, z = If (p) <
            then_branch = l () => (double[3] a, double[3] e) { a = Sin (x)  e = Neg (x) },
            else_branch = r () => (double[3] b, double[3] f) { b = Tanh (x)  f = Identity (b) }>
    }""",
        {"x": X},
    )


def test_a_new_name_is_none_of_what_is_moved() -> None:
    """The scope has 'a', so the branch's 'a' gets another name; 'a_1' is a value of the branch itself."""
    model = fold(
        """(double[3] x) => (double[3] z) <bool p = {1}> {
        y = If (p) <
            then_branch = l () => (double[3] c) { a_1 = Sin (x)  a = Mul (a_1, x)  c = Add (a, a_1) },
            else_branch = r () => (double[3] b) { b = Tanh (x) }>
        a = Neg (x)
        z = Add (y, a)
    }""",
        {"x": X},
    )
    assert operators(model) == ["Sin", "Mul", "Add", "Neg", "Add"]
    assert len({output.name for node in model.graph for output in node.outputs}) == 5
