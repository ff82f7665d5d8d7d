"""Which inputs and outputs of a gradient model belong to what."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.interface import Interface, read_interface
from onnx_cfad.names import InterfaceNames
from tests.onnx_text import LOOP, LOSS, model


def held(text: str) -> ir.Model:
    return ir.from_proto(model(text))


def test_seeds_and_gradients_are_found() -> None:
    gradient = cfad.vjp(model(LOOP), wrt=["w"], outputs=["ys"])
    names = InterfaceNames({"ys": "ys_grad"}, {"w": "w_grad"})
    assert read_interface(held(LOOP), gradient.model) == Interface(("w",), ("ys",), names, {"w": "w"})


def test_loss_is_read_from_what_the_model_records() -> None:
    gradient = cfad.grad(model(LOSS), loss="loss", wrt=["x", "w"])
    names = InterfaceNames({}, {"x": "x_grad", "w": "w_grad"})
    assert read_interface(held(LOSS), gradient.model) == Interface(("x", "w"), ("loss",), names, {"x": "x", "w": "w"})


def test_loss_without_a_record_is_the_only_scalar_or_is_asked_for() -> None:
    gradient = cfad.grad(model(LOSS), loss="loss").model
    gradient.metadata_props.clear()
    assert read_interface(held(LOSS), gradient).outputs == ("loss",)
    two = "two (float[2] x) => (float a, float b) { a = ReduceSum <keepdims = 0> (x) b = ReduceMax <keepdims = 0> (x) }"
    other = cfad.grad(model(two), loss="a").model
    other.metadata_props.clear()
    with pytest.raises(ModelError, match="--loss NAME; the outputs are 'a', 'b'"):
        read_interface(held(two), other)
    assert read_interface(held(two), other, loss="a").outputs == ("a",)
    with pytest.raises(ModelError, match="does not say which output is the loss"):
        read_interface(held(two), other, loss="c")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("g (float[2] x) => (float[2] y) { y = Neg (x) }", "no output beyond"),
        ("g (float[2] z) => (float[2] y, float[2] z_grad) { y = Neg (z) z_grad = Neg (z) }", "has no input 'x'"),
        ("g (float[2] x) => (float[2] z, float[2] x_grad) { z = Neg (x) x_grad = Neg (x) }", "has no output 'y'"),
        (
            "g (float[2] x, float[2] k) => (float[2] y, float[2] x_grad) { y = Neg (x) x_grad = Neg (k) }",
            "further input 'k'",
        ),
        ("g (float[2] x) => (float[2] y, float[2] z) { y = Neg (x) z = Neg (x) }", "further output 'z'"),
    ],
)
def test_model_that_is_not_the_gradient_is_refused(other: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_interface(held("g (float[2] x) => (float[2] y) { y = Neg (x) }"), held(other))
