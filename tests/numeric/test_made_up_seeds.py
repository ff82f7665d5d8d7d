"""Inputs made up for differentiated models: every seed fits the output that it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.model import load
from onnx_cfad.numeric.made_up_seeds import make_up_inputs
from onnx_cfad.runtime import Session
from tests.onnx_text import model

LOOP = """g (float[N,3] x, int64 n) => (float[A,B] y) {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[P,Q] h) => (bool go, float[P,Q] next) {
        go = Identity (on)
        next = Sin (h)
    }>
}"""
"""Its output has symbols of its own, as exporters write them, so the seed could have any size."""


def made_up(source: Any) -> dict[str, Any]:
    loaded = load(source)
    session = Session(loaded)
    feeds = make_up_inputs(loaded, session.run, 0)
    assert all(np.all(np.isfinite(value)) for value in session.run(feeds).values())
    return feeds


def test_seed_has_the_shape_of_its_output() -> None:
    feeds = made_up(cfad.vjp(model(LOOP), wrt=["x"]).model)
    assert feeds["y_grad"].shape == feeds["x"].shape
    assert feeds["y_grad"].dtype == np.float32


def test_seed_known_by_its_name_alone() -> None:
    gradient = cfad.vjp(model(LOOP), wrt=["x"]).model
    gradient.metadata_props.clear()
    feeds = made_up(gradient)
    assert feeds["y_grad"].shape == feeds["x"].shape


def test_seeds_of_a_gradient_of_a_gradient() -> None:
    first = cfad.vjp(model(LOOP), wrt=["x"])
    feeds = made_up(cfad.vjp(first.model, wrt=["x"]).model)
    seeds = [name for name in feeds if "_grad" in name]
    assert len(seeds) == 3
    assert {feeds[name].shape for name in seeds} == {feeds["x"].shape}


@pytest.mark.parametrize(("seeds", "count"), [(5, 5), ("K", 3)])
def test_many_seeds_have_a_leading_axis(seeds: int | str, count: int) -> None:
    feeds = made_up(cfad.vjp(model(LOOP), wrt=["x"], seeds=seeds).model)
    assert feeds["y_grad"].shape == (count, *feeds["x"].shape)


def test_shape_that_the_values_decide() -> None:
    text = """g (float[N] x) => (float[M] y) {
        zero = Constant <value_float = 0.0> ()
        on = Greater (x, zero)
        squares = Mul (x, x)
        y = Compress (squares, on)
    }"""
    feeds = made_up(cfad.vjp(model(text), wrt=["x"]).model)
    assert feeds["y_grad"].shape == (int((feeds["x"] > 0).sum()),)


def test_input_that_only_looks_like_a_seed() -> None:
    feeds = made_up(model("g (float[4] y_grad) => (float[4] y) { y = Neg (y_grad) }"))
    assert feeds["y_grad"].shape == (4,)


def test_model_that_is_no_gradient() -> None:
    assert set(made_up(model(LOOP))) == {"x", "n"}


def test_primal_that_does_not_run_asks_for_inputs() -> None:
    text = "g (float[2] x, float[3] z) => (float[K] y) { s = Shape (x) e = Reshape (z, s) y = Mul (x, e) }"
    gradient: ir.Model = cfad.vjp(model(text), wrt=["x"]).model
    with pytest.raises(ModelError, match="--inputs"):
        make_up_inputs(gradient, Session(gradient).run, 0)


def test_gradient_model_is_validated_without_inputs() -> None:
    first = cfad.vjp(model(LOOP), wrt=["x"])
    validation = cfad.validate(first.model, wrt=["x"])
    assert validation.holds
    assert validation.checked
