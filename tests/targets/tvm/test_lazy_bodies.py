"""Bodies are compiled when they run first: a branch that is never taken costs nothing, and counters say so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_cfad.runtime import Session
from onnx_cfad.targets.tvm.bodies import Body
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.specialise import meet, write_bodies
from onnx_cfad.targets.tvm.worker import shared_worker
from tests.graph.reading import parsed

TEXT = """(float[4] x, bool c) => (float[4] y) {
    y = If (c) <
        then_branch = t () => (float[4] p) { p = Exp (x) }, else_branch = e () => (float[4] q) { q = Neg (x) }>
}"""
STRAIGHT = "(float[4] x) => (float[4] y) { y = Neg (x) }"
X = np.array([0.0, 1.0, -1.0, 2.0], np.float32)


def test_folder_that_cannot_be_written_to_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An artifact on a read-only disk: what a run has to compile is for that run."""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> f {STRAIGHT}'), tmp_path / "body0.onnx")
    compiled: list[Path] = []

    class Recording:
        def versions(self) -> dict[str, Any]:
            return {}

        def compile(self, model: Path, library: Path, shapes: Any, options: Any) -> None:  # noqa: ARG002
            compiled.append(library)
            library.write_bytes(model.read_bytes())

        def load(self, library: Path) -> Any:
            session = Session(onnx.load(library))
            return lambda arrays: [session.run({"x": arrays[0]})["y"]]

    body = Body("main/0", tmp_path / "body0", Recording(), {})
    monkeypatch.setattr(os, "access", lambda *_: False)
    for _ in range(2):
        np.testing.assert_array_equal(body([X])[0], -X)
    assert [path.name for path in tmp_path.iterdir()] == ["body0.onnx"]
    assert body.counts.compiled == len(compiled) == 1
    assert not compiled[0].parent.exists()


@pytest.mark.parametrize(
    "kind", [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
)
def test_cold_branch_is_compiled_when_it_is_taken_first(kind: str, tmp_path: Path) -> None:
    parts = partition(parsed(TEXT))
    stems = {name: f"body{index}" for index, name in enumerate(parts.bodies)}
    met, _ = meet(parts, {"x": X, "c": np.array(False)})
    write_bodies(parts, {name: record.counts for name, record in met.items()}, tmp_path, stems, kind)
    (tmp_path / "program.json").write_text(parts.program.to_json(), encoding="utf-8")
    worker = shared_worker(kind, interpreter(kind))

    def counts_after(taken: bool) -> dict[str, tuple[int, int]]:
        arguments: dict[str, Any] = {"program": str(tmp_path / "program.json"), "bodies": str(tmp_path), "stems": stems}
        result, arrays = worker.call("run_program", arguments, {"x": X, "c": np.array(taken)})
        np.testing.assert_allclose(arrays["y"], np.exp(X) if taken else -X, rtol=1e-6)
        return {name: (counts["compiled"], counts["calls"]) for name, counts in result["bodies"].items()}

    assert counts_after(False) == {"main/y/then/0": (0, 0), "main/y/else/0": (1, 1)}
    assert counts_after(False) == {"main/y/then/0": (0, 0), "main/y/else/0": (1, 2)}
    assert counts_after(True) == {"main/y/then/0": (1, 1), "main/y/else/0": (1, 2)}
