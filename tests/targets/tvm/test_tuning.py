"""Schedules are searched within a budget; what is not faster, or not reached, keeps the library that it has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import CfadError, ModelError, TargetError
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.cache import Cache
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm import tuning
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.worker import Worker, shared_worker

BUILDS = [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
PRODUCT = """<ir_version: 8, opset_import: ["": 18]>
product (float[192, 192] x, float[192, 192] w) => (float[192, 192] z) {
    y = MatMul (x, w)
    z = Tanh (y)
}"""
# A branch keeps it from being one function; each side is a body.
CHOICE = """<ir_version: 8, opset_import: ["": 18]> choice (float[192, 192] x, bool p) => (float[192, 192] y) {
    u = MatMul (x, x)
    y = If (p) <
        then_branch = t () => (float[192, 192] a) { a1 = MatMul (u, x)  a = Tanh (a1) },
        else_branch = e () => (float[192, 192] b) { b = Neg (u) }>
}"""
X = (np.random.default_rng(0).standard_normal((192, 192)) / 14).astype(np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.mark.relax
def test_product_is_faster_and_right() -> None:
    """Relax's own schedule of a product is a plain nest of loops, many times slower than any tiled one."""
    feeds = {"x": X, "w": X}
    told: list[str] = []
    start = time.monotonic()
    model = onnx.parser.parse_model(PRODUCT)
    artifact = compile_model(model, "llvm", feeds=feeds, options=Options("relax", tune=6.0), tell=told.append)
    found = artifact.manifest.program["tuning"]
    assert found["spent"] < 6 + tuning._GRACE
    assert time.monotonic() - start < 60
    (body,) = found["bodies"]
    assert body["trials"] > body["failed"]
    assert body["after_us"] < 0.5 * body["before_us"]
    assert any(text.startswith("tuning 1 of 1, the whole model") for text in told)
    assert "1 of 1 bodies are faster" in artifact.manifest.notes[-1]
    expected = Session(model).run(feeds)["z"]
    np.testing.assert_allclose(artifact.run(feeds)["z"], expected, rtol=1e-5, atol=1e-5)
    again = compile_model(model, "llvm", feeds=feeds, options=Options("relax", tune=6.0))
    assert again.manifest == artifact.manifest  # from the cache
    plain = compile_model(model, "llvm", feeds=feeds, options=Options("relax"))
    assert "tuning" not in plain.manifest.program


@pytest.mark.parametrize("build", BUILDS)
def test_budget_that_reaches_nothing_leaves_every_library_as_it_is(build: str) -> None:
    feeds = {"x": X, "p": np.array(True)}
    model = onnx.parser.parse_model(CHOICE)
    options = Options(build, form="host", tune=0.2)
    artifact = compile_model(model, "llvm", feeds=feeds, options=options)
    bodies = artifact.manifest.program["tuning"]["bodies"]
    assert [body["name"] for body in bodies] == ["main/0", "main/y/then/0"]
    assert {body["kept"] for body in bodies} == {"the time was up, or its part in it too small"}
    assert [body["trials"] for body in bodies] == [0, 0]


@pytest.mark.relax
def test_worker_that_dies_in_a_search_costs_the_gain_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is compiled stays; what was cut short is not kept by the cache."""
    call = Worker.call

    def dying(self: Worker, name: str, *arguments: Any, **limits: Any) -> Any:
        if name == "search_schedules":
            raise TargetError("TVM Relax", "'search_schedules': the worker was killed by SIGSEGV")
        return call(self, name, *arguments, **limits)

    monkeypatch.setattr(Worker, "call", dying)
    cache = Cache(tmp_path / "cache")
    model = onnx.parser.parse_model(PRODUCT)
    artifact = compile_model(model, "llvm", feeds={"x": X, "w": X}, options=Options("relax", tune=3.0), cache=cache)
    (body,) = artifact.manifest.program["tuning"]["bodies"]
    assert "SIGSEGV" in body["kept"]
    assert cache.size()[0] == 0


@pytest.mark.relax
def test_loop_that_is_one_function_has_nothing_to_tune() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    decay (float[3] x) => (float[3] y) <int64 n = {4}, bool go = {1}> {
        y = Loop (n, go, x) <body = step (int64 i, bool on, float[3] h) => (bool again, float[3] next) {
            again = Identity (on)  next = Tanh (h) }>
    }"""
    feeds = {"x": np.ones(3, np.float32)}
    artifact = compile_model(onnx.parser.parse_model(text), "llvm", feeds=feeds, options=Options("relax", tune=3.0))
    assert artifact.manifest.notes[-1] == "nothing to tune in 3 s: no body with kernels of its own"


@pytest.mark.relax
def test_numbers_and_targets_that_make_no_sense_are_refused() -> None:
    model = onnx.parser.parse_model(PRODUCT)
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ModelError, match="tune .*number above 0"):
            cfad.compile(model, target="llvm", build="relax", tune=seconds)
    with pytest.raises(TargetError, match="llvm alone"):
        cfad.compile(model, target="cuda", build="relax", tune=1.0)


@pytest.mark.relax
def test_build_that_would_crash_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with a newer apache-tvm-ffi, by a variable: its answer is passed on, and nothing is compiled."""
    reason = "apache-tvm-ffi 0.1.15 crashes where a search for schedules writes a program as JSON"
    call = Worker.call

    def refusing(self: Worker, name: str, *arguments: Any, **limits: Any) -> Any:
        if name == "search_is_possible":
            raise TargetError("TVM Relax", reason)
        assert name in ("versions", "search_is_possible")
        return call(self, name, *arguments, **limits)

    monkeypatch.setattr(Worker, "call", refusing)
    with pytest.raises(CfadError, match=reason):
        cfad.compile(onnx.parser.parse_model(PRODUCT), target="llvm", build="relax", tune=1.0)


@pytest.mark.relax
def test_pinned_relax_can_search() -> None:
    shared_worker("relax", interpreter("relax")).call("search_is_possible", {})


@pytest.mark.relay
def test_input_that_is_read_as_it_is_and_transposed(tmp_path: Path) -> None:
    """A pass of Relay's forgets such an input; it is left out then. So it is in a gradient by both operands."""
    text = """<ir_version: 8, opset_import: ["": 18]> product (float[32, 64] x, float[64, 64] w) => (float loss) {
        a = MatMul (x, w)  h = Tanh (a)  s = Mul (h, h)  loss = ReduceSum <keepdims = 0> (s)
    }"""
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((32, 64)).astype(np.float32),
        "w": rng.standard_normal((64, 64)).astype(np.float32),
    }
    gradient = cfad.grad(onnx.parser.parse_model(text), loss="loss", wrt=["x", "w"])
    artifact = cfad.compile(gradient, target="llvm", build="relay", output=tmp_path / "out", feeds=feeds)
    assert artifact.manifest.errors is not None
    assert max(artifact.manifest.errors.values()) < 1e-5
