"""What a loop body makes of constants: in front of the loop, with the Constants that nothing else reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.hoist import HoistInvariantsPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning

X = {"x": np.arange(2, dtype=np.float32)}
BODY = """(float[2] x) => (float[2] y) <int64 n = {3}, float[4] w = {1, 2, 3, 4}> {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[2] h) => (bool go, float[2] next) {
        go = Identity (on)
        %s
    }>
}"""


def hoisting(model: ir.Model) -> HoistInvariantsPass:
    infer_types(model)
    return HoistInvariantsPass()


def inside(model: ir.Model) -> list[str]:
    return [node.op_type for graph in model.graph.subgraphs() for node in graph]


def test_constants_go_along_with_what_reads_them() -> None:
    lines = """a = Constant <value_ints = [1]> ()  b = Constant <value_ints = [3]> ()
        s = Slice (w, a, b)  k = Constant <value_float = 2.0> ()  t = Mul (s, k)  next = Add (h, t)"""
    assert inside(assert_pass_keeps_meaning(hoisting, BODY % lines, X)) == ["Identity", "Add"]


@pytest.mark.parametrize(
    "lines",
    [
        # read by something that stays
        """a = Constant <value_ints = [0]> ()  b = Constant <value_ints = [2]> ()
        s = Slice (w, a, b)  r = Slice (h, a, b)  next = Add (r, s)""",
        # a weight stays where it is, and so does what is made of it
        "v = Constant <value_floats = [1.0, 2.0]> ()  s = Exp (v)  next = Add (h, s)",
        "v = Constant <value_float = 1.5> ()  next = Add (h, v)",
    ],
)
def test_what_stays(lines: str) -> None:
    assert_pass_keeps_meaning(hoisting, BODY % lines, X, modifies=False)
