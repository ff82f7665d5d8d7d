"""`run`: what it writes and prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.calls import FEEDS, call, refused, saved


class TestRun:
    def test_outputs_are_written(self, loop: Path, inputs: Path, tmp_path: Path) -> None:
        result = call("run", loop, "--inputs", inputs, "-o", tmp_path / "out.npz")
        assert result.exit_code == 0, result.output
        with np.load(tmp_path / "out.npz") as found:
            assert sorted(found.files) == ["y", "ys"]
            state = FEEDS["x"]
            for _ in range(3):
                state = np.tanh(state * FEEDS["w"])
            np.testing.assert_allclose(found["y"], state, rtol=1e-6)
        assert "ys: float32[3, 2]" in result.stdout

    def test_gradient_model_runs(self, loop: Path, tmp_path: Path) -> None:
        assert call("transform", loop, "--outputs", "y").exit_code == 0
        np.savez(tmp_path / "seeded.npz", **FEEDS, y_grad=np.ones(2, np.float32))
        target = tmp_path / "out.npz"
        result = call(
            "run", loop.with_name("loop.grad.onnx"), "--inputs", tmp_path / "seeded.npz", "-o", target, "--json"
        )
        assert json.loads(result.stdout)["outputs"]["x_grad"] == "float32[2]"

    def test_runtime_says_no_in_one_line(self, tmp_path: Path) -> None:
        source = saved("g (double[2,2] x) => (double y) { y = Det (x) }", tmp_path / "det.onnx")
        np.savez(tmp_path / "in.npz", x=np.eye(2))
        text = refused(call("run", source, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz"))
        assert "ONNX Runtime: refuses the model" in text
        assert not (tmp_path / "out.npz").exists()

    def test_output_directory_is_refused(self, loop: Path, inputs: Path, tmp_path: Path) -> None:
        assert "the output is a directory" in refused(call("run", loop, "--inputs", inputs, "-o", tmp_path))
