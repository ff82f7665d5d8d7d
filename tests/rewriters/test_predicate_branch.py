"""An If as straight-line code: the same numbers; values are guarded where they enter a branch, selected at its end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.predicate_branch import PredicateBranchPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.asarray([0.3, 0.7, 1.1])


def every_if(model: ir.Model) -> PredicateBranchPass:
    infer_types(model)
    return PredicateBranchPass(node for node in model.graph.all_nodes() if node.op_type == "If")


def test_operands_are_guarded_and_results_selected() -> None:
    text = """(double[3] x, bool p) => (double[3] y) { y = If (p) <
        then_branch = l () => (double[3] a) { a = Log (x) },
        else_branch = r () => (double[3] b) { b = Neg (x) }> }"""
    for p in (True, False):
        model = assert_pass_keeps_meaning(every_if, text, {"x": X, "p": p})
        assert operators(model) == ["Where", "Log", "Where", "Neg", "Where"]


def test_inner_branches_go_first_and_loops_inside_are_guarded() -> None:
    text = """(double[3] x, int64[3] at, bool p, bool q) => (double[3] y) <int64 n = {2}> { y = If (p) <
        then_branch = l () => (double[3] a) {
            a = Loop (n, , x) <body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next) {
                again = Identity (going)  next = Gather (h, at) }> },
        else_branch = r () => (double[3] b) {
            b = If (q) <then_branch = t () => (double[3] c) { c = Sin (x) },
                        else_branch = e () => (double[3] d) { d = Identity (x) }> }> }"""
    feeds = {"x": X, "at": np.asarray([2, 0, 1]), "p": True, "q": True}
    for p, q, at in ((True, True, [2, 0, 1]), (False, True, [9, 9, 9]), (False, False, [-7, 0, 0])):
        model = assert_pass_keeps_meaning(every_if, text, {**feeds, "p": p, "q": q, "at": np.asarray(at)})
        assert "If" not in operators(model)
        body = next(node for node in model.graph if node.op_type == "Loop").attributes["body"].as_graph()
        assert [node.op_type for node in body] == ["Identity", "Where", "Gather"]


def test_branches_that_hand_values_on_need_no_guard() -> None:
    text = """(double[3] x, double[3] w, bool p) => (double[3] y) { y = If (p) <
        then_branch = l () => (double[3] a) { a = Identity (x) },
        else_branch = r () => (double[3] b) { b = Identity (w) }> }"""
    model = assert_pass_keeps_meaning(every_if, text, {"x": X, "w": -X, "p": False})
    assert operators(model) == ["Identity", "Identity", "Where"]


def test_initializer_of_a_loop_in_a_branch_stays_inside() -> None:
    text = """(double[3] x, bool p) => (double[3] y) <int64 n = {2}> { y = If (p) <
        then_branch = l () => (double[3] a) {
            a = Loop (n, , x) <body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next)
                <double half = {0.5}> { again = Identity (going)  next = Mul (h, half) }> },
        else_branch = r () => (double[3] b) { b = Neg (x) }> }"""
    for p in (True, False):
        assert_pass_keeps_meaning(every_if, text, {"x": X, "p": p})
