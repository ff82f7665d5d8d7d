"""Sums over the rows of a matrix as products with ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.sum_rows import SumRowsPass
from tests.graph.reading import nodes
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def summing(model: ir.Model) -> SumRowsPass:
    infer_types(model)
    return SumRowsPass(Namer.of_model(model), ())


@pytest.mark.parametrize(("keepdims", "dims"), [(0, "3"), (1, "1, 3")])
def test_sum_is_a_product(keepdims: int, dims: str) -> None:
    text = (
        f"(float[4, 3] x) => (float[{dims}] y) <int64[1] a = {{0}}> {{ y = ReduceSum <keepdims = {keepdims}> (x, a) }}"
    )
    assert operators(assert_pass_keeps_meaning(summing, text, {"x": X})) == ["MatMul"]


def test_factor_takes_the_place_of_the_ones() -> None:
    text = """(float[4, 3] x) => (float[3] y) <int64[1] a = {0}, float half = {0.5}> {
        s = Mul (half, x)  y = ReduceSum <keepdims = 0> (s, a)
    }"""
    model = assert_pass_keeps_meaning(summing, text, {"x": X})
    assert nodes(model, "MatMul")[0].inputs[1] is model.graph.inputs[0]


@pytest.mark.parametrize(
    ("signature", "line"),
    [
        ("(float[4, 3] x) => (float[4] y) <int64[1] a = {1}>", "y = ReduceSum <keepdims = 0> (x, a)"),  # columns
        ("(float[N, 3] x) => (float[3] y) <int64[1] a = {0}>", "y = ReduceSum <keepdims = 0> (x, a)"),  # unknown number
        ("(float[4, 3] x) => (float y)", "y = ReduceSum <keepdims = 0> (x)"),
    ],
)
def test_other_sums_stay(signature: str, line: str) -> None:
    assert_pass_keeps_meaning(summing, f"{signature} {{ {line} }}", {"x": X}, modifies=False)


def test_infinite_element_stays_in_its_column() -> None:
    text = "(float[4, 3] x) => (float[3] y) <int64[1] a = {0}> { y = ReduceSum <keepdims = 0> (x, a) }"
    x = X.copy()
    x[1] = np.inf, np.nan, 1
    assert_pass_keeps_meaning(summing, text, {"x": x})


def test_sum_in_a_branch_stays() -> None:
    text = """(float[4, 3] x, bool p) => (float[3] y) <int64[1] a = {0}> {
        y = If (p) <
            then_branch = yes () => (float[3] s) { s = ReduceSum <keepdims = 0> (x, a) },
            else_branch = no () => (float[3] t) { u = Neg (x)  t = ReduceSum <keepdims = 0> (u, a) }
        >
    }"""
    assert_pass_keeps_meaning(summing, text, {"x": X, "p": np.asarray(True)}, modifies=False)
