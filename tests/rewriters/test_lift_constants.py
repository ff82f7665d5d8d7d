"""Constants that a transformation added are declared; those of the author, and those that a graph returns, stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.rewriters.lift_constants import LiftConstantsPass
from tests.graph.reading import nodes
from tests.rewriters.check_pass import assert_pass_keeps_meaning

TEXT = """(float[2] x) => (float[2] y, float k) {
    k = Constant <value_float = 3.0> ()
    n = Constant <value_int = 3> ()
    on = Constant <value_int = 1> ()
    flag = Cast <to = 9> (on)
    y = Loop (n, flag, x) <body = step (int64 i, bool go, float[2] h) => (bool again, float[2] next) {
        again = Identity (go)  half = Constant <value_float = 0.5> ()  next = Mul (h, half)
    }>
}"""


def lifting(model: ir.Model) -> LiftConstantsPass:
    return LiftConstantsPass({n for n in nodes(model, "Constant") if n.outputs[0].name == "on"})


def test_constants_of_every_scope() -> None:
    model = assert_pass_keeps_meaning(lifting, TEXT, {"x": np.ones(2, np.float32)})
    assert {n.outputs[0].name for n in nodes(model, "Constant")} == {"k", "on"}
    assert list(model.graph.initializers) == ["n"]
    assert [list(graph.initializers) for graph in model.graph.subgraphs()] == [["half"]]
