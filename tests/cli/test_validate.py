"""`validate`: what it prints and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_cfad
from tests.cli.calls import call, refused, saved
from tests.onnx_text import LOSS


class TestValidate:
    def test_gradient_that_holds(self, loop: Path, inputs: Path) -> None:
        assert call("transform", loop).exit_code == 0
        result = call("validate", loop, loop.with_name("loop.grad.onnx"), "--inputs", inputs)
        assert result.exit_code == 0, result.output
        assert "2 of 2 gradients hold" in result.stdout
        assert "float64 in ONNX Runtime" in result.stdout

    def test_differentiates_first_and_makes_inputs_up(self, loop: Path) -> None:
        result = call("validate", loop, "--wrt", "w")
        assert result.exit_code == 0, result.output
        assert "1 of 1 gradients hold" in result.stdout

    def test_wrong_gradient_exits_with_1(self, loop: Path, tmp_path: Path) -> None:
        written = onnx_cfad.vjp(loop).proto()
        (last,) = [node for node in written.graph.node if "w_grad" in node.output]
        last.output[list(last.output).index("w_grad")] = "right"
        written.graph.node.append(onnx.helper.make_node("Neg", ["right"], ["w_grad"]))
        onnx.save(written, tmp_path / "wrong.onnx")
        result = call("validate", loop, tmp_path / "wrong.onnx")
        assert result.exit_code == 1
        assert "1 of 2 gradients hold, 1 wrong" in result.stdout
        report = json.loads(call("validate", loop, tmp_path / "wrong.onnx", "--json").stdout)
        assert report["holds"] is False
        assert [row["verdict"] for row in report["rows"]] == ["ok", "wrong"]
        assert call("validate", loop, tmp_path / "wrong.onnx", "--quiet").output == ""

    @pytest.mark.parametrize("x", [np.nan, -1.0])
    def test_nothing_checked_exits_with_1(self, x: float, tmp_path: Path) -> None:
        source = saved("g (float[2] x) => (float[2] y) { y = Log (x) }", tmp_path / "log.onnx")
        np.savez(tmp_path / "in.npz", x=np.full(2, x, np.float32))
        result = call("validate", source, "--inputs", tmp_path / "in.npz")
        assert result.exit_code == 1
        assert "0 of 1 gradients hold, 1 not checked" in result.stdout
        assert "nothing was checked. Give other inputs (--inputs X.npz" in result.stdout
        report = json.loads(call("validate", source, "--inputs", tmp_path / "in.npz", "--json").stdout)
        assert (report["holds"], report["checked"]) == (False, False)

    @pytest.mark.parametrize("rtol", ["-1", "0", "1.5", "nan", "inf"])
    def test_tolerance_out_of_range_is_refused(self, rtol: str, loop: Path) -> None:
        assert "expected a number between 0 and 1" in refused(call("validate", loop, "--rtol", rtol))

    def test_json_has_only_numbers_that_json_has(self, tmp_path: Path) -> None:
        text = "g (float[2] x) => (float[2] y) { r = RandomUniformLike (x) y = Mul (r, x) }"
        report = json.loads(call("validate", saved(text, tmp_path / "random.onnx"), "--json").stdout)
        assert report["rows"][0]["numeric"] is None
        assert report["rows"][0]["verdict"] == "not checked"

    def test_gradient_of_another_model_is_refused(self, loop: Path, tmp_path: Path) -> None:
        other = saved(LOSS, tmp_path / "loss.onnx")
        assert "gradient model: it has no input 'w'" in refused(call("validate", loop, other))

    def test_model_that_needs_inputs_asks_for_them(self, tmp_path: Path) -> None:
        text = "g (float[2,3] x, int64[2] i) => (float[A,3] y) <int64 k = {-99}> { j = Add (i, k) y = Gather (x, j) }"
        text = refused(call("validate", saved(text, tmp_path / "gather.onnx")))
        assert "--inputs X.npz" in text
