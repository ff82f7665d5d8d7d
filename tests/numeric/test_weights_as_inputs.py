"""Weights become inputs, wherever they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.errors import ModelError
from onnx_cfad.numeric.weights_as_inputs import find_weights, weights_as_inputs
from onnx_cfad.runtime import Session
from tests.onnx_text import model

TEXT = """g (float[2] x, bool up) => (float[2] y) <float[2] w = {1.0, 2.0}> {
    k = Constant <value = float[2] {3.0, 4.0}> ()
    a = Mul (x, w)
    b = Mul (a, k)
    y = If (up) <
        then_branch = up () => (float[2] r) { inner = Constant <value = float[2] {5.0, 6.0}> () r = Mul (b, inner) },
        else_branch = down () => (float[2] q) <float[2] held = {7.0, 8.0}> { q = Add (b, held) }
    >
}"""


@pytest.mark.parametrize(("name", "value"), [("w", [1, 2]), ("k", [3, 4]), ("inner", [5, 6]), ("held", [7, 8])])
def test_weight_can_be_varied(name: str, value: list[int]) -> None:
    opened = ir.from_proto(model(TEXT))
    inputs, values = weights_as_inputs(opened, [name])
    np.testing.assert_array_equal(values[inputs[name]], np.asarray(value, np.float32))
    original, session = Session(model(TEXT)), Session(opened)
    for up in (True, False):
        feeds = {"x": np.asarray([1.0, -1.0], np.float32), "up": np.asarray(up)}
        expected = original.run(feeds)["y"]
        np.testing.assert_array_equal(session.run({**feeds, **values})["y"], expected)
        doubled = session.run({**feeds, inputs[name]: 2 * values[inputs[name]]})["y"]
        used = name in ("w", "k") or (name == "inner") == up
        assert np.array_equal(doubled, expected) != used


def test_constant_that_is_an_output_can_be_varied() -> None:
    opened = ir.from_proto(
        model(
            "g (float[1] x) => (float[1] y, float[1] k) { y = Identity (x) k = Constant <value = float[1] {2.0}> () }"
        )
    )
    inputs, _ = weights_as_inputs(opened, ["k"])
    feeds = {"x": np.zeros(1, np.float32), inputs["k"]: np.full(1, 9, np.float32)}
    assert Session(opened).run(feeds)["k"][0] == 9


def test_name_in_two_branches_is_found_twice() -> None:
    text = """g (float[1] x, bool up) => (float[1] y) {
        y = If (up) <
            then_branch = up () => (float[1] r) { k = Constant <value = float[1] {5.0}> () r = Mul (x, k) },
            else_branch = down () => (float[1] q) { k = Constant <value = float[1] {6.0}> () q = Mul (x, k) }
        >
    }"""
    opened = ir.from_proto(model(text))
    assert len(find_weights(opened, "k")) == 2
    with pytest.raises(ModelError, match="2 initializers or constants"):
        weights_as_inputs(opened, ["k"])
    with pytest.raises(ModelError, match="0 initializers or constants"):
        weights_as_inputs(opened, ["nothing"])
