"""Loops over sequences as one program or one function: their sequences are tensors there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import MOST_ROW_BYTES, legalise
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from tests.graph.reading import parsed

BUILDS = [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
both = pytest.mark.parametrize("build", BUILDS)

GROWING = """(float[3] x, INPUT float[3] ct) => (float[3] y, float[3] back) CONSTANT {
    some = SequenceConstruct (x)
    seen, y = Loop (n, , some, x) <body = forward (int64 i, bool on, seq(float[3]) q, float[3] h)
        => (bool go, seq(float[3]) r, float[3] next) {
        go = Identity (on)
        two = Constant <value_int = 2> ()  half = Div (i, two)
        early = SequenceAt (q, half)  s = Sin (early)  next = Add (s, h)  r = SequenceInsert (q, next)
    }>
    back, rest = Loop (n, , ct, seen) <body = reverse (int64 j, bool on2, float[3] c, seq(float[3]) t)
        => (bool go2, float[3] before, seq(float[3]) less) {
        go2 = Identity (on2)
        minus = Constant <value_int = -1> ()
        saved = SequenceAt (t, minus)  less = SequenceErase (t)  d = Cos (saved)  before = Mul (c, d)
    }>
}"""
KNOWN = GROWING.replace("INPUT ", "").replace("CONSTANT", "<int64 n = {5}>")
COMPUTED = GROWING.replace("INPUT ", "int64 n, ").replace("CONSTANT", "")
FEEDS: dict[str, Any] = {
    "x": np.array([0.5, -1.25, 2], np.float32),
    "ct": np.array([1, 2, -1], np.float32),
}


@both
def test_loop_that_reads_what_it_inserts_is_one_program(build: str) -> None:
    artifact = compile_model(parsed(KNOWN), "llvm", feeds=FEEDS, options=Options(build))
    assert "library" in artifact.manifest.program
    assert not artifact.manifest.notes
    for x in (FEEDS["x"], -FEEDS["x"]):
        feeds = {**FEEDS, "x": x}
        for name, value in Session(parsed(KNOWN)).run(feeds).items():
            np.testing.assert_allclose(artifact.run(feeds)[name], value, rtol=2e-6)


@pytest.mark.relay
def test_trip_count_that_the_run_knows_before_the_loop() -> None:
    feeds = {**FEEDS, "n": np.array(5)}
    artifact = compile_model(parsed(COMPUTED), "llvm", feeds=feeds, options=Options("relay"))
    assert "library" in artifact.manifest.program
    for n in (0, 1, 7):
        given = {**feeds, "n": np.array(n)}
        for name, value in Session(parsed(COMPUTED)).run(given).items():
            np.testing.assert_allclose(artifact.run(given)[name], value, rtol=2e-6, err_msg=f"{n} iterations")


@pytest.mark.relax
def test_sequence_of_computed_length_stays_with_the_host() -> None:
    feeds = {**FEEDS, "n": np.array(5)}
    artifact = compile_model(parsed(COMPUTED), "llvm", feeds=feeds, options=Options("relax"))
    assert artifact.manifest.form.startswith("a host program")
    told = "a sequence stays with the host: 'q': Loop carries a number of elements that the run decides"
    assert artifact.manifest.notes[0].startswith(told)
    for n in (0, 1, 40):  # bodies read elements, so that no number of them is compiled for
        given = {**feeds, "n": np.array(n)}
        for name, value in Session(parsed(COMPUTED)).run(given).items():
            np.testing.assert_allclose(artifact.run(given)[name], value, rtol=2e-6, err_msg=f"{n} iterations")


def test_many_rows_are_not_copied_in_each_iteration() -> None:
    long = GROWING.replace("INPUT ", "").replace("CONSTANT", "<int64 n = {99999}>")
    legal = legalise(normalise(parsed(long)), "relay", MOST_ROW_BYTES)
    assert "SequenceInsert" in {node.op_type for node in legal.graph.all_nodes()}
    legal = legalise(normalise(parsed(long)), "relay")
    assert "SequenceInsert" not in {node.op_type for node in legal.graph.all_nodes()}
