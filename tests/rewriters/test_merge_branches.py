"""What both branches do is done once, in front of the If; branches that are the same need no If."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.merge_branches import MergeBranchesPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.asarray([0.3, -0.7, 1.1])
FEEDS = {"x": X, "w": X[::-1].copy(), "p": True}
HEAD = "(double[3] x, double[3] w, bool p) => (double[3] y)"


def merge(text: str, *, modifies: bool = True, feeds: dict[str, Any] | None = None) -> ir.Model:
    def make(model: ir.Model) -> MergeBranchesPass:
        infer_types(model)
        return MergeBranchesPass()

    return assert_pass_keeps_meaning(make, text, feeds or FEEDS, modifies=modifies)


def test_common_work_moves_in_front() -> None:
    model = merge(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ s = Sin (x)  m = Mul (s, w)  a = Tanh (m) }},
        else_branch = r () => (double[3] b) {{ t = Sin (x)  n = Mul (t, w)  b = Neg (n) }}> }}""")
    assert operators(model) == ["Sin", "Mul", "If", "Tanh", "Neg"]


def test_order_of_the_nodes_does_not_matter() -> None:
    model = merge(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ s = Sin (x)  c = Cos (w)  a = Mul (s, c) }},
        else_branch = r () => (double[3] b) {{ c = Cos (w)  s = Sin (x)  b = Add (s, c) }}> }}""")
    assert operators(model) == ["Sin", "Cos", "If", "Mul", "Add"]


def test_constants_move_with_what_reads_them() -> None:
    model = merge(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ k = Constant <value = double {{2.5}}> ()  m = Mul (x, k)  a = Sin (m) }},
        else_branch = r () => (double[3] b) <double k = {{2.5}}> {{ m = Mul (x, k)  b = Cos (m) }}> }}""")
    assert operators(model) == ["Constant", "Mul", "If", "Sin", "Cos"]


def test_constants_of_other_content_keep_work_apart() -> None:
    merge(
        f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ k = Constant <value = double {{2.5}}> ()  m = Mul (x, k)  a = Sin (m) }},
        else_branch = r () => (double[3] b) <double k = {{-2.5}}> {{ m = Mul (x, k)  b = Cos (m) }}> }}""",
        modifies=False,
    )


def test_attributes_keep_work_apart() -> None:
    merge(
        f"""{HEAD} <int64 zero = {{0}}> {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ s = CumSum <reverse = 1> (x, zero)  a = Mul (s, w) }},
        else_branch = r () => (double[3] b) {{ s = CumSum (x, zero)  b = Add (s, w) }}> }}""",
        modifies=False,
    )


def test_branches_that_are_the_same_need_no_if() -> None:
    model = merge(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ s = Sin (x)  a = Mul (s, w) }},
        else_branch = r () => (double[3] b) {{ t = Sin (x)  b = Mul (t, w) }}> }}""")
    assert operators(model) == ["Sin", "Mul"]


def test_branches_with_the_same_loop_need_no_if() -> None:
    loop = """{0} = Loop (n, , x) <body = body{0} (int64 i, bool going, double[3] h{0})
        => (bool again{0}, double[3] next{0}) {{ again{0} = Identity (going)  next{0} = Sin (h{0}) }}>"""
    model = merge(f"""{HEAD} <int64 n = {{3}}> {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ {loop.format("a")} }},
        else_branch = r () => (double[3] b) {{ {loop.format("b")} }}> }}""")
    assert operators(model) == ["Loop", "Identity", "Sin"]


def test_random_draws_stay_two() -> None:
    model = """(double[3] x, bool p) => (double[3] y, double[3] z) { y = If (p) <
        then_branch = l () => (double[3] a) { r = RandomUniformLike (x)  s = Sub (r, r)  a = Add (s, x) },
        else_branch = r () => (double[3] b) { r = RandomUniformLike (x)  s = Sub (r, r)  b = Add (s, x) }>
        z = Sin (y) }"""
    merge(model, modifies=False, feeds={"x": X, "p": True})


def test_what_moves_out_of_an_inner_if_moves_on() -> None:
    inner = "If (q) <then_branch = t () => (double[3] c) {{ s = Sin (x)  c = Mul (s, {0}) }},"
    inner += " else_branch = e () => (double[3] d) {{ s = Sin (x)  d = Sub (s, {0}) }}>"
    model = merge(
        f"""(double[3] x, double[3] w, bool p, bool q) => (double[3] y) {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ a = {inner.format("w")} }},
        else_branch = r () => (double[3] b) {{ b = {inner.format("x")} }}> }}""",
        feeds={**FEEDS, "q": False},
    )
    assert operators(model)[:2] == ["Sin", "If"]
    assert operators(model).count("Sin") == 1


def test_a_branch_that_only_hands_on_what_moved_keeps_an_output_of_its_own() -> None:
    model = merge(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ a = Sin (x) }},
        else_branch = r () => (double[3] b) {{ s = Sin (x)  b = Mul (s, w) }}> }}""")
    assert operators(model) == ["Sin", "If", "Identity", "Mul"]
