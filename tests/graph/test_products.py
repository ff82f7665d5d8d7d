"""Products that are worth keeping: many operations for each byte of what is kept."""

from __future__ import annotations

from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.types import infer_types
from tests.graph.reading import parsed


def dear(text: str) -> list[str | None]:
    model = parsed(text)
    infer_types(model)
    return [value.name for value in dear_products(model.graph)]


def test_sum_of_two_products_is_kept_as_one_value() -> None:
    text = """(float[8, 512] x, float[8, 512] h, float[512, 64] u, float[512, 64] w, float[64] b) => (float[8, 64] y) {
        p = MatMul (x, u)  q = MatMul (h, w)  s = Add (p, q)  z = Add (s, b)  y = Tanh (z)
    }"""
    assert dear(text) == ["z"]


def test_product_that_is_read_twice_is_kept_itself() -> None:
    text = """(float[8, 512] x, float[512, 64] u, float[64] b) => (float[8, 64] y) {
        p = MatMul (x, u)  z = Add (p, b)  t = Tanh (z)  y = Mul (t, p)
    }"""
    assert dear(text) == ["p"]


def test_short_inner_dimension_is_computed_again() -> None:
    text = "(float[8, 256] x, float[256, 64] u) => (float[8, 64] y) { p = MatMul (x, u)  y = Tanh (p) }"
    assert dear(text) == []


def test_half_the_bytes_need_half_the_work() -> None:
    text = "(float16[8, 256] x, float16[256, 64] u) => (float16[8, 64] y) { p = MatMul (x, u)  y = Tanh (p) }"
    assert dear(text) == ["p"]


def test_transposed_left_operand_has_its_inner_dimension_first() -> None:
    text = """(float[512, 8] x, float[512, 64] u) => (float[8, 64] y) {
        p = Gemm <transA = 1> (x, u)  y = Tanh (p)
    }"""
    assert dear(text) == ["p"]


def test_unknown_dimension_is_not_guessed() -> None:
    text = "(float[8, K] x, float[K, 64] u) => (float[8, 64] y) { p = MatMul (x, u)  y = Tanh (p) }"
    assert dear(text) == []
