"""Constant factors as the ``alpha`` of the products that read what is scaled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.scale_products import ScaleProductsPass
from tests.graph.reading import nodes, parsed
from tests.rewriters.check_pass import assert_pass_keeps_meaning

FEEDS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "w": np.arange(6, dtype=np.float32).reshape(3, 2)}
HEAD = (
    "(float[2, 3] x, float[3, 2] w) => (float[2, 2] y) <float quarter = {0.25}, float zero = {0}, float tiny = {1e-20}>"
)


def scaling(model: ir.Model) -> ScaleProductsPass:
    infer_types(model)
    return ScaleProductsPass(())


def test_factors_of_both_operands() -> None:
    text = f"{HEAD} {{ a = Mul (x, quarter)  b = Mul (quarter, w)  y = Gemm <alpha = 2.0> (a, b) }}"
    product = nodes(assert_pass_keeps_meaning(scaling, text, FEEDS), "Gemm")[0]
    assert [value.name for value in product.inputs if value is not None] == ["x", "w"]
    assert product.attributes["alpha"].as_float() == 0.125


@pytest.mark.parametrize(
    "lines",
    [
        "a = Mul (x, zero)  y = Gemm (a, w)",  # would not see what is infinite
        "a = Mul (x, tiny)  y = Gemm (a, w)",  # may keep the product from overflowing
        "a = Mul (x, quarter)  p = Gemm (a, w)  s = ReduceMax (a)  y = Add (p, s)",
        "a = Mul (x, x)  y = Gemm (a, w)",
        "p = Gemm (x, w)  a = Mul (p, quarter)  y = Gemm (x, w, a)",  # what a product adds
    ],
)
def test_what_stays(lines: str) -> None:
    assert_pass_keeps_meaning(scaling, f"{HEAD} {{ {lines} }}", FEEDS, modifies=False)


def test_factor_of_float64_that_no_attribute_has_stays() -> None:
    """An attribute is a float32, which has each factor, but not their product."""
    one = 1 + 2.0**-20
    text = (
        f"(double[2, 3] x, double[3, 2] w) => (double[2, 2] y) <double one = {{{one!r}}}>"
        "{ a = Mul (x, one)  b = Mul (w, one)  y = Gemm (a, b) }"
    )
    feeds = {name: value.astype(np.float64) for name, value in FEEDS.items()}
    product = nodes(assert_pass_keeps_meaning(scaling, text, feeds), "Gemm")[0]
    assert [value.name for value in product.inputs if value is not None] == ["x", "b"]
    tenth = text.replace(repr(one), "0.1")
    assert_pass_keeps_meaning(scaling, tenth, feeds, modifies=False)


def test_number_that_may_be_replaced_stays() -> None:
    model = parsed(f"{HEAD} {{ a = Mul (x, quarter)  y = Gemm (a, w) }}")
    infer_types(model)
    assert not ScaleProductsPass({model.graph.initializers["quarter"]})(model).modified
