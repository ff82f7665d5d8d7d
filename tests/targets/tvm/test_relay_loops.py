"""Long loops on Relay's virtual machine: in two levels they need no more memory than short ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import legalise
from onnx_cfad.runtime import Session
from onnx_cfad.saving import save
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.worker import Worker
from tests.graph.reading import parsed

pytestmark = [pytest.mark.relay]

LONG_LOOP = """(float[8] x, float[8, 8] w) => (float[8] y) <int64 n = {TRIPS}> {
    y = Loop (n, , x) <body = step (int64 i, bool on, float[8] h) => (bool go, float[8] next) {
        go = Identity (on)  m = MatMul (h, w)  next = Tanh (m)
    }>
}"""
ROWS = """(float[8] x, float[8, 8] w) => (float[rows, 8] y, float[8] z) <int64 n = {2000}> {
    z, y = Loop (n, , x) <body = step (int64 i, bool on, float[8] h) => (bool go, float[8] next, float[8] row) {
        last = Constant <value_int = 1500> ()  go = Less (i, last)
        m = MatMul (h, w)  next = Tanh (m)  row = Identity (next)
    }>
}"""


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal(8).astype(np.float32), "w": (0.5 * rng.standard_normal((8, 8))).astype(np.float32)}


def test_memory_of_a_long_loop(tmp_path: Path) -> None:
    worker = Worker("relay", interpreter("relay"))
    peaks: list[int] = []
    for trips in (500, 50_000):  # in one level the second takes 0.9 GB more
        model = legalise(normalise(parsed(LONG_LOOP.replace("TRIPS", str(trips)))), "relay")
        save(model, tmp_path / f"{trips}.onnx")
        library = str(tmp_path / f"{trips}.so")
        worker.call("compile_model", {"model": str(tmp_path / f"{trips}.onnx"), "library": library})
        arrays = {str(k): feed for k, feed in enumerate(feeds().values())}
        result, outputs = worker.call("run_library", {"library": library}, arrays)
        peaks.append(result["peak_bytes"])
        np.testing.assert_allclose(outputs["0"], Session(model, threads=1).run(feeds())["y"], rtol=1e-4, atol=1e-5)
    worker.close()
    assert peaks[1] < peaks[0] + 40e6


def test_loop_of_many_iterations_that_stacks_nothing_is_left_to_the_machine() -> None:
    model = parsed(LONG_LOOP.replace("TRIPS", "5000"))
    artifact = compile_model(model, "llvm", feeds=feeds(), options=Options(build="relay", form="auto"))
    assert "library" in artifact.manifest.program


def test_rows_and_a_condition_in_a_long_loop() -> None:
    model = parsed(ROWS)
    artifact = compile_model(model, "llvm", feeds=feeds(), options=Options(build="relay", form="whole"))
    found, expected = artifact.run(feeds()), Session(model, threads=1).run(feeds())
    assert found["y"].shape == (1501, 8)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
    hosted = compile_model(model, "llvm", feeds=feeds(), options=Options(build="relay", form="auto"))
    assert "stacks values in 2,000 iterations" in hosted.manifest.notes[0]
