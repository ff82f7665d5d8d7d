"""What the run decides stays with the host program, and the reason is said: axes, shapes of branches and of carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.types import infer_types
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm.kept_on_host import why_kept
from tests.graph.reading import parsed

BUILDS = [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]

AXES = "(float[2, 3] x, int64[1] axes) => (float[a, b] y) { y = ReduceSum <keepdims = 1> (x, axes) }"
BRANCHES = """(float[3] x, bool p) => (float[n] y) {
    a = If (p) <
        then_branch = yes () => (float[3] b) { b = Sin (x) },
        else_branch = no () => (float[6] c) { c = Concat <axis = 0> (x, x) }>
    y = Neg (a)
}"""
CARRY = """(float[1] x, int64 n) => (float[m] y) {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[k] h) => (bool go, float[j] next) {
        go = Identity (on)  s = Sin (h)  next = Concat <axis = 0> (h, s)
    }>
}"""
X = np.array([0.5, -1, 2], np.float32)
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]], str]] = {
    "axes": (
        AXES,
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "axes": np.array([1])},
        [],
        "ReduceSum reduces over the axes 'axes', which the run decides",
    ),
    "branches": (
        BRANCHES,
        {"x": X, "p": np.array(True)},
        [{"p": np.array(False)}],
        "If: 'a' is [3] or [6], as its branches give it",
    ),
    "carry": (
        CARRY,
        {"x": X[:1], "n": np.array(3)},
        [{"n": np.array(0)}, {"n": np.array(5)}],
        "Loop: the carry 'h' changes its shape [1]",
    ),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("case", CASES)
def test_whole_form_is_refused_and_the_host_runs_it(case: str, build: str) -> None:
    text, feeds, others, reason = CASES[case]
    with pytest.raises(TargetError) as refused:
        compile_model(parsed(text), "llvm", feeds=feeds, options=Options(build, "whole"))
    assert f"{reason}. Compile it with --form host." in str(refused.value)
    artifact = compile_model(parsed(text), "llvm", feeds=feeds, options=Options(build))
    assert artifact.manifest.form.startswith("a host program")
    assert artifact.manifest.notes[0].endswith(f": {reason}")
    for other in [{}, *others]:
        given = {**feeds, **other}
        expected, found = Session(parsed(text)).run(given)["y"], artifact.run(given)["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.relax
def test_other_axes_than_those_of_the_samples_are_refused() -> None:
    feeds = CASES["axes"][1]
    artifact = compile_model(parsed(AXES), "llvm", feeds=feeds, options=Options("relax"))
    with pytest.raises(TargetError, match="body 'main/0': .*constant axes"):
        artifact.run({**feeds, "axes": np.array([0])})


def test_what_is_known_is_not_kept() -> None:
    model = parsed(BRANCHES.replace("float[6] c", "float[3] c").replace("Concat <axis = 0> (x, x)", "Neg (x)"))
    infer_types(model)
    assert why_kept(model) is None
    model = parsed(AXES.replace(", int64[1] axes", "").replace("{", "<int64[1] axes = {0}> {", 1))
    infer_types(model)
    assert why_kept(model) is None
