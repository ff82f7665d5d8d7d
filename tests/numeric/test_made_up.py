"""Inputs made up from declarations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.numeric.made_up import make_up_feeds
from onnx_cfad.ports import Port
from onnx_cfad.runtime import Session
from tests.onnx_text import LOOP, model


def accepted(_: Any) -> dict[str, Any]:
    return {}


def test_a_symbol_has_one_size() -> None:
    ports = [Port("a", "float32", ("B", 3)), Port("b", "float32", ("T", "B")), Port("c", "float16", ("T", None))]
    feeds = make_up_feeds(ports, accepted, 0)
    assert feeds["a"].shape[1] == 3
    assert feeds["a"].shape[0] == feeds["b"].shape[1]
    assert feeds["b"].shape[0] == feeds["c"].shape[0]
    assert [feeds[name].dtype for name in "abc"] == [np.float32, np.float32, np.float16]


def test_integers_are_small_and_not_negative() -> None:
    ports = [
        Port("indices", "int64", (50,)),
        Port("trips", "int64", ()),
        Port("byte", "uint8", (4,)),
        Port("on", "bool", ()),
    ]
    feeds = make_up_feeds(ports, accepted, 0)
    assert 0 <= feeds["indices"].min() < feeds["indices"].max() < 5
    assert 1 <= int(feeds["trips"]) <= 5
    assert feeds["byte"].dtype == np.uint8
    assert bool(feeds["on"])


def test_same_seed_gives_the_same() -> None:
    ports = [Port("x", "float64", ("N",))]
    first, again, other = (make_up_feeds(ports, accepted, seed)["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_input_with_a_default_is_left_out() -> None:
    assert make_up_feeds([Port("x", "float32", (2,), required=False)], accepted, 0) == {}


def test_sizes_that_must_agree_are_found() -> None:
    """Exporters give dimensions different names that are one size."""
    text = "g (float[A] x, float[B] y) => (float[C] z) { s = Shape (x) e = Reshape (y, s) z = Add (x, e) }"
    session = Session(model(text))
    feeds = make_up_feeds(session.inputs, session.run, 0)
    assert feeds["x"].shape == feeds["y"].shape
    assert session.run(feeds)["z"].shape == feeds["x"].shape


def test_length_that_a_model_needs_is_found() -> None:
    text = """g (float[B,T] x) => (float[B,U] y) {
        pads = Constant <value_ints = [0, 20, 0, 20]> ()
        y = Pad <mode = "reflect"> (x, pads)
    }"""
    session = Session(model(text))
    assert make_up_feeds(session.inputs, session.run, 0)["x"].shape[1] > 20


def test_finite_results_are_preferred() -> None:
    session = Session(model("g (float[8] x) => (float[8] y) { y = Log (x) }"))
    feeds = make_up_feeds(session.inputs, session.run, 0)
    assert np.all(np.isfinite(session.run(feeds)["y"]))


def test_control_flow_model_runs_on_them() -> None:
    session = Session(model(LOOP))
    assert session.run(make_up_feeds(session.inputs, session.run, 0))["ys"].shape[0] > 0


@pytest.mark.parametrize(
    "port", [Port("x", "str", (2,)), Port("x", "float32", None), Port("x", "seq(tensor(float))", None, tensor=False)]
)
def test_what_cannot_be_made_up_is_asked_for(port: Port) -> None:
    with pytest.raises(ModelError, match="input 'x'.*--inputs"):
        make_up_feeds([port], accepted, 0)


def test_model_that_never_runs_is_asked_for_inputs() -> None:
    def refuses(_: Any) -> dict[str, Any]:
        raise TargetError("ONNX Runtime", "index out of range")

    with pytest.raises(ModelError, match=r"index out of range.*--inputs X\.npz"):
        make_up_feeds([Port("x", "float32", (2,))], refuses, 0)
