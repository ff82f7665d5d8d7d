"""Bodies are compiled when they run first: a branch that is never taken costs nothing, and counters say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.specialise import meet, write_bodies
from onnx_cfad.targets.tvm.worker import shared_worker
from tests.graph.reading import parsed

TEXT = """(float[4] x, bool c) => (float[4] y) {
    y = If (c) <
        then_branch = t () => (float[4] p) { p = Exp (x) }, else_branch = e () => (float[4] q) { q = Neg (x) }>
}"""
X = np.array([0.0, 1.0, -1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    "kind", [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
)
def test_cold_branch_is_compiled_when_it_is_taken_first(kind: str, tmp_path: Path) -> None:
    parts = partition(parsed(TEXT))
    stems = {name: f"body{index}" for index, name in enumerate(parts.bodies)}
    met, _ = meet(parts, {"x": X, "c": np.array(False)})
    write_bodies(parts, met, tmp_path, stems, kind)
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
