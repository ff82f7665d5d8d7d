"""Operands that an elementwise operator broadcasts itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.drop_expands import DropExpandsPass
from tests.graph.reading import nodes
from tests.rewriters.check_pass import assert_pass_keeps_meaning

FEEDS = {"x": np.arange(3, dtype=np.float32), "z": np.arange(6, dtype=np.float32).reshape(2, 3)}


def dropping(model: ir.Model) -> DropExpandsPass:
    infer_types(model)
    return DropExpandsPass(())


@pytest.mark.parametrize("dims", ["2, 3", "M, N"])
@pytest.mark.parametrize(
    "lines",
    [
        "e = Expand (x, s)  y = Mul (e, z)",
        "e = Expand (x, s)  y = Sub (z, e)",
        "e = Expand (x, s)  c = Cast <to = 9> (z)  y = Where (c, e, half)",
        "u = Unsqueeze (x, first)  e = Expand (u, s)  y = Div (e, z)",
    ],
)
def test_operand_of_a_whole_one(lines: str, dims: str) -> None:
    head = f"(float[3] x, float[{dims}] z) => (float[{dims}] y) <float half = {{0.5}}, int64[1] first = {{0}}>"
    head = head.replace("float[3] x", "float[N] x") if dims == "M, N" else head
    model = assert_pass_keeps_meaning(dropping, f"{head} {{ s = Shape (z)  {lines} }}", FEEDS)
    assert not nodes(model, "Expand")[0].outputs[0].uses()


def test_one_of_two_has_to_stay() -> None:
    text = "(float[3] x, float[2, 3] z) => (float[2, 3] y) { s = Shape (z)  e = Expand (x, s)  y = Add (e, e) }"
    assert len(nodes(assert_pass_keeps_meaning(dropping, text, FEEDS), "Expand")[0].outputs[0].uses()) == 1


@pytest.mark.parametrize(
    "lines",
    [
        "s = Shape (z)  e = Expand (x, s)  h = ReduceMax (z)  y = Mul (e, h)",  # the result would be smaller
        "s = Shape (z)  e = Expand (x, s)  y = MatMul (e, w)",
    ],
)
def test_what_stays(lines: str) -> None:
    head = "(float[3] x, float[2, 3] z) => (float[2, 3] y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>"
    assert_pass_keeps_meaning(dropping, f"{head} {{ {lines} }}", FEEDS, modifies=False)
