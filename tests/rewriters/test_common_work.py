"""What both branches of an If do stands in front of it, but for what they return."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.rewriters.common_work import HoistCommonWorkPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.asarray([0.3, -0.7, 1.1])
FEEDS = {"x": X, "w": X[::-1].copy(), "p": True}
SIDES = ("then_branch", "else_branch")
HEAD = "(double[3] x, double[3] w, bool p) => (double[3] y)"


def hoist(text: str, *, modifies: bool = True, primal: bool = False) -> ir.Model:
    def make(model: ir.Model) -> HoistCommonWorkPass:
        infer_types(model)
        return HoistCommonWorkPass(frozenset(nodes_of(model.graph)) if primal else frozenset())

    return assert_pass_keeps_meaning(make, text, FEEDS, modifies=modifies)


CHAIN = f"""{HEAD} {{ y = If (p) <
    then_branch = l () => (double[3] a) {{ s = Sin (x)  m = Mul (s, w)  n = Neg (m)  a = Tanh (n) }},
    else_branch = r () => (double[3] b) {{ c = Cos (w)  t = Sin (x)  m = Mul (t, w)  k = Exp (m)
        b = Mul (k, c) }}> }}"""


def test_chain_of_common_work_moves_in_front() -> None:
    assert operators(hoist(CHAIN)) == ["Sin", "Mul", "If", "Neg", "Tanh", "Cos", "Exp", "Mul"]


def test_branches_of_the_primal_are_left_alone() -> None:
    hoist(CHAIN, modifies=False, primal=True)


def test_what_a_branch_returns_stays() -> None:
    text = f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ a = Sin (x) }},
        else_branch = r () => (double[3] b) {{ t = Sin (x)  b = Neg (t) }}> }}"""
    hoist(text, modifies=False)


def test_repeated_work_of_one_branch_has_one_twin() -> None:
    model = hoist(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ s = Sin (x)  t = Sin (x)  a = Mul (s, t) }},
        else_branch = r () => (double[3] b) {{ s = Sin (x)  b = Neg (s) }}> }}""")
    assert operators(model) == ["Sin", "If", "Sin", "Mul", "Neg"]


def test_results_of_one_node_stay_apart() -> None:
    hoist_text = f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ v, i = TopK (x, k)  c = Sin (v)  a = Neg (c) }},
        else_branch = r () => (double[3] b) {{ v, i = TopK (w, k)  c = Sin (v)  b = Exp (c) }}> }}"""
    hoist(hoist_text.replace("{ y", "<int64[1] k = {3}> { y", 1), modifies=False)


def test_common_work_of_inner_branches_moves_on() -> None:
    inner = """{0} = If (p) <then_branch = l{0} () => (double[3] u{0}) {{ s{0} = Sin (x)  u{0} = {1} (s{0}) }},
        else_branch = r{0} () => (double[3] v{0}) {{ t{0} = Sin (x)  v{0} = {2} (t{0}) }}>"""
    model = hoist(f"""{HEAD} {{ y = If (p) <
        then_branch = l () => (double[3] a) {{ {inner.format("a", "Neg", "Tanh")} }},
        else_branch = r () => (double[3] b) {{ {inner.format("b", "Exp", "Cos")} }}> }}""")
    assert operators(model) == ["Sin", "If", "If", "Neg", "Tanh", "If", "Exp", "Cos"]


def test_sizes_that_one_branch_alone_knows_are_forgotten() -> None:
    """The reverse pass of a branch knows what its own residual looks like, where both have one value for theirs."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 21]> m {CHAIN}""")
    infer_types(model)
    branch = next(node for node in model.graph if node.op_type == "If")
    one, other = (next(n for n in branch.attributes[k].as_graph() if n.op_type == "Sin") for k in SIDES)
    one.outputs[0].shape, other.outputs[0].shape = ir.Shape([7]), ir.Shape([3])
    HoistCommonWorkPass(())(model)
    assert one.graph is model.graph
    assert one.outputs[0].shape == ir.Shape([None])
