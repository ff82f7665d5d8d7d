"""Nodes that read constants alone: folded where the result is exact and worth its room."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.fold_constants import FoldConstantsPass
from onnx_cfad.rewriters.legalise import fold_known
from tests.graph.reading import nodes, parsed
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators, run


def folding(model: ir.Model) -> FoldConstantsPass:
    infer_types(model)
    return FoldConstantsPass()


def test_weights_in_another_order() -> None:
    text = """(float[2, 3] x) => (float[2, 2] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
        t = Transpose <perm = [1, 0]> (w)  s = Sqrt (t)  y = MatMul (x, s)
    }"""
    model = assert_pass_keeps_meaning(folding, text, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert operators(model) == ["Constant", "Constant", "MatMul"]


def test_inside_of_a_loop() -> None:
    text = """(float[2] x) => (float[2] y) <int64 n = {3}, float[2] a = {1, 2}> {
        b = Neg (a)
        y = Loop (n, , x) <body = step (int64 i, bool on, float[2] h) => (bool go, float[2] next) {
            go = Identity (on)  c = Mul (b, a)  next = Add (h, c)
        }>
    }"""
    model = assert_pass_keeps_meaning(folding, text, {"x": np.ones(2, np.float32)})
    assert not nodes(model, "Mul")


@pytest.mark.parametrize(
    "line",
    [
        "e = Exp (a)  y = Add (x, e)",  # implementations round it differently
        "e = Expand (a, shape)  s = ReduceSum <keepdims = 0> (e)  y = Add (x, s)",
    ],
)
def test_what_is_left_to_the_run(line: str) -> None:
    text = f"(float[2] x) => (float[2] y) <float[2] a = {{1, 2}}, int64[3] shape = {{70, 70, 2}}> {{ {line} }}"
    assert_pass_keeps_meaning(folding, text, {"x": np.ones(2, np.float32)}, modifies=False)


def test_division_of_integers_by_zero_is_left_to_the_run() -> None:
    text = "(int64[1] x) => (int64[1] y) <int64[1] a = {0}, int64[1] b = {7}> { d = Div (b, a)  y = Add (x, d) }"
    assert not FoldConstantsPass()(parsed(text)).modified


def test_input_with_a_default_is_no_constant() -> None:
    text = "(float[2] x, float[2] a = {1, 2}) => (float[2] y) { b = Neg (a)  y = Add (x, b) }"
    assert not FoldConstantsPass()(parsed(text)).modified


def test_widths_of_a_pad_that_depend_on_a_square_root() -> None:
    text = """(float[5, 3] x) => (float[n, 3] y) <int64[1] zero = {0}> {
        s = Shape <start = 0, end = 1> (x)  d = Cast <to = 11> (s)  r = Sqrt (d)  w = Cast <to = 7> (r)
        widths = Concat <axis = 0> (zero, zero, w, zero)  y = Pad (x, widths)
    }"""
    model = parsed(text)
    fold_known(model)
    assert set(operators(model)) == {"Constant", "Pad"}
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(run(ir.to_proto(model), {"x": x})[0], np.pad(x, ((0, 2), (0, 0))))


def test_loop_without_condition_and_carries_keeps_its_inputs() -> None:
    text = """(float[2] x) => (float[3, 2] y) <int64 n = {3}> {
        unused = Neg (x)  one = Constant <value_float = 1.0> ()  two = Add (one, one)
        y = Loop (n, ) <body = step (int64 i, bool on) => (bool go, float[2] row) {
            go = Identity (on)  k = Cast <to = 1> (i)  t = Mul (k, two)  row = Mul (x, t)
        }>
    }"""
    model = parsed(text)
    fold_known(model)
    (loop,) = nodes(model, "Loop")
    assert len(loop.inputs) == 2
    np.testing.assert_array_equal(run(ir.to_proto(model), {"x": np.ones(2, np.float32)})[0][:, 0], [0, 2, 4])
