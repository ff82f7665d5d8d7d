"""The assertions that the package offers to others' tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnx_cfad.adjoint.expr import Expr
from onnx_cfad.errors import ValidationError
from onnx_cfad.rules import registry
from onnx_cfad.testing import assert_same_model, check_grads, check_vjp
from tests.corpus import CORPUS
from tests.onnx_text import LOOP, model

SQUARE = "g (float[2] x) => (float[2] y) { y = Mul (x, x) }"


@pytest.fixture
def wrong_sin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for Sin whose first derivative is right, but whose second is not: it goes through a wrong one of Cos."""
    key = ("", "Cos")

    def rule(ct: Expr, y: Expr, _: Expr) -> Expr:
        return ct * y

    wrong = registry.Rule(rule, broadcasts=False, elementwise=True, attributes=())
    monkeypatch.setitem(registry._RULES, key, wrong)


def test_right_gradient_passes() -> None:
    example = CORPUS["nests"][next(iter(CORPUS["nests"]))]("float")
    found = check_vjp(example.model, wrt=example.wrt, outputs=example.outputs, feeds=example.feeds)
    assert len(found.rows) == len(example.wrt)


def test_made_up_inputs_and_names() -> None:
    found = check_vjp(model(LOOP), "w", "ys", seed=5)
    assert [row.name for row in found.rows] == ["w"]


@pytest.mark.usefixtures("wrong_sin")
def test_wrong_second_derivative_is_caught() -> None:
    text = model("g (float[2] x) => (float[2] y) { y = Sin (x) }")
    assert check_vjp(text).holds
    assert len(check_grads(text, order=1)) == 1
    with pytest.raises(ValidationError, match="wrt 'x'"):
        check_grads(text)


@pytest.mark.usefixtures("wrong_sin")
def test_wrong_gradient_is_caught() -> None:
    with pytest.raises(ValidationError, match="wrt 'x'.*differences give"):
        check_vjp(model("g (float[2] x) => (float[2] y) { y = Cos (x) }"))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders(order: int) -> None:
    found = check_grads(model(LOOP), order=order, every_element_up_to=2)
    assert len(found) == order
    assert all(validation.holds for validation in found)


def test_second_derivative_is_that_of_the_gradient() -> None:
    feeds = {"x": np.asarray([1.5, -2.0], np.float32)}
    _, second = check_grads(model(SQUARE), feeds=feeds, directions=1)
    assert [row.name for row in second.rows] == ["x"]
    assert second.rows[0].scale > 0


def test_same_model_passes() -> None:
    assert_same_model(model(LOOP), model(LOOP))
    assert_same_model(model(SQUARE), model("g (float[2] x) => (float[2] y) { z = Mul (x, x) y = Identity (z) }"))


def test_other_numbers_are_caught() -> None:
    other = model("g (float[2] x) => (float[2] y) <float[1] k = {1.001}> { z = Mul (x, x) y = Mul (z, k) }")
    with pytest.raises(ValidationError, match="output 'y': the models differ by 0.001"):
        assert_same_model(model(SQUARE), other, rtol=1e-4)
    assert_same_model(model(SQUARE), other, rtol=2e-3)


def test_other_outputs_are_caught() -> None:
    with pytest.raises(ValidationError, match="one has the outputs 'y', the other 'z'"):
        assert_same_model(model(SQUARE), model("g (float[2] x) => (float[2] z) { z = Mul (x, x) }"))


def test_other_type_is_caught() -> None:
    other: onnx.ModelProto = model("g (float[2] x) => (double[2] y) { z = Mul (x, x) y = Cast <to = 11> (z) }")
    feeds: dict[str, Any] = {"x": np.zeros(2, np.float32)}
    with pytest.raises(ValidationError, match="differ by inf"):
        assert_same_model(model(SQUARE), other, feeds, rtol=1.0)
