"""Tensors of one number behind an If are no constants to ONNX Runtime, and hold the number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.keep_unfolded import KeepUnfoldedPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

FEEDS = {"x": np.asarray([0.3, -0.7, 1.1]), "p": False}
HEAD = """(double[3] x, bool p) => (double[3] y, double[2,3] z, double[3] v)
    <double c = {2.5}, int64[2] wide = {2, 3}, int64[1] flat = {3}> """
BRANCH = """y = If (p) <then_branch = l () => (double[3] a) { a = Sin (x) },
    else_branch = r () => (double[3] b) { b = Cos (x) }>"""


def keep(text: str, *, modifies: bool = True, primal: bool = False) -> ir.Model:
    def make(model: ir.Model) -> KeepUnfoldedPass:
        infer_types(model)
        return KeepUnfoldedPass(nodes_of(model.graph) if primal else (), Namer.of_model(model))

    return assert_pass_keeps_meaning(make, text, FEEDS, modifies=modifies)


def test_one_number_is_chosen_for_all() -> None:
    model = keep(f"{HEAD} {{ {BRANCH} z = Expand (c, wide)  v = Expand (c, flat) }}")
    assert operators(model) == ["If", "Sin", "Cos", "Where", "Expand", "Expand"]


def test_what_stands_in_front_of_the_if_is_left_alone() -> None:
    keep(f"{HEAD} {{ z = Expand (c, wide)  v = Expand (c, flat)  {BRANCH} }}", modifies=False)


def test_nodes_of_the_primal_are_left_alone() -> None:
    keep(f"{HEAD} {{ {BRANCH} z = Expand (c, wide)  v = Expand (c, flat) }}", modifies=False, primal=True)


def test_what_the_run_decides_is_left_alone() -> None:
    keep(f"{HEAD} {{ {BRANCH} s = ReduceSum <keepdims = 0> (x)  z = Expand (s, wide)  v = Neg (x) }}", modifies=False)
