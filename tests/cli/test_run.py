"""`run`: what it writes and prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from tests.cli.calls import FEEDS, call, refused, saved
from tests.onnx_text import model


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

    def test_names_of_files_may_be_any_bytes(self, tmp_path: Path) -> None:
        """ONNX Runtime takes paths in UTF-8 alone."""
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
        folder.mkdir()
        weight = np.arange(1000, dtype=np.float32)
        text = "g (float[1000] x) => (float[1000] y) { y = Mul (x, w) }"
        source, proto = folder / os.fsdecode(b"\xfe.onnx"), model(text)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
        (tmp_path / "m.onnx").rename(source)
        (tmp_path / "w.data").rename(folder / "w.data")
        np.savez(folder / "in.npz", x=weight)
        assert call("transform", source, "--quiet").exit_code == 0
        assert call("validate", source, source.with_suffix(".grad.onnx")).exit_code == 0
        result = call("run", source, "--inputs", folder / "in.npz", "-o", folder / "out.npz", "--quiet")
        assert result.exit_code == 0, result.output
        with np.load(folder / "out.npz") as found:
            np.testing.assert_array_equal(found["y"], weight * weight)

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
