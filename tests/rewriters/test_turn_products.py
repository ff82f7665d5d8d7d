"""Transposed products as products of the factors in the other order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.rewriters.turn_products import TurnProductsPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

FEEDS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.arange(8, dtype=np.float32).reshape(2, 4)}
HEAD = "(float[2, 3] x, float[2, 4] c) => (float[4, 3] y)"


def turning(model: ir.Model) -> TurnProductsPass:
    del model
    return TurnProductsPass(())


@pytest.mark.parametrize(
    "lines",
    [
        "p = Gemm <transA = 1, alpha = 0.5> (x, c)  y = Transpose <perm = [1, 0]> (p)",
        "u = Transpose (c)  p = Gemm <transA = 1, transB = 1> (x, u)  y = Transpose (p)",
    ],
)
def test_factors_change_places(lines: str) -> None:
    model = assert_pass_keeps_meaning(turning, f"{HEAD} {{ {lines} }}", FEEDS)
    assert operators(model)[-1] == "Gemm"


@pytest.mark.parametrize(
    "lines",
    [
        "p = Gemm <transA = 1> (x, c)  t = Transpose (p)  s = ReduceMax (p)  y = Mul (t, s)",  # read twice
        "b = Gemm <transA = 1> (x, c)  p = Gemm <transA = 1> (x, c, b)  y = Transpose (p)",  # a sum
    ],
)
def test_what_stays(lines: str) -> None:
    assert_pass_keeps_meaning(turning, f"{HEAD} {{ {lines} }}", FEEDS, modifies=False)
