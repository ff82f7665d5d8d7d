"""Bad input is one line on standard error and exit code 2, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.bad_models import BAD_MODELS, absent, directory, text_file, truncated
from tests.cli.calls import FEEDS, call, refused, saved


class TestBadInput:
    @pytest.mark.parametrize(("make", "message"), BAD_MODELS, ids=[make.__name__ for make, _ in BAD_MODELS])
    def test_model_is_refused_in_one_line(self, make: Any, message: str, tmp_path: Path) -> None:
        source = make(tmp_path)
        before = sorted(tmp_path.iterdir())
        assert message in refused(call("transform", source, "-o", tmp_path / "out.onnx"))
        assert sorted(tmp_path.iterdir()) == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--wrt", "q"], "wrt 'q': the model has no such input"),
            (["--wrt", "trips"], "wrt 'trips': expected a floating-point tensor"),
            (["--outputs", "q"], "output 'q': the model has no such output"),
            (["--loss", "y"], "loss 'y': expected a scalar"),
            (["--wrt", "y"], "wrt 'y': it is computed, by Loop"),
            (["--loss", "y", "--outputs", "ys"], "loss 'y': a loss and outputs are both named"),
            (["--mode", "forward", "--tape", "float16"], "tape: is of a reverse pass"),
            (["--mode", "forward", "--levels", "3"], "levels: is of a reverse pass"),
            (["--mode", "forward", "--memory", "1MiB"], "memory: is of a reverse pass"),
            (["--mode", "forward", "--implicit-outputs"], "implicit_outputs: is of a reverse pass"),
            (["--implicit-fallback", "x"], "implicit_fallback 'x': expected one of checkpointed, nan, none"),
            (["--levels", "9"], "levels 9: expected a whole number from 2 to 8"),
            (["--stop-gradient", "q"], "'q': the model has no value of this name"),
            (["--plan", "quick"], "plan 'quick': expected auto, taped"),
            (["--site", "main/q=taped"], "site 'main/q': the model has no such control-flow site"),
            (["--memory", "much"], "memory 'much': expected a number of bytes"),
            (["--wrt", "W"], "no such input, initializer or constant. Did you mean 'w'?"),
            (["--wrt", "trips"], "found int64. Only floating-point values have a derivative"),
            (["--outputs", "Y"], "Did you mean 'y'?"),
            (["--stop-gradient", "P"], "Did you mean 'p'?"),
            (["--plan", "tape"], "Did you mean 'taped'?"),
            (["--plan", "loop.onnx"], "found a file that is no text"),
            (["--plan", "/"], "plan '/': is a directory"),
            (["--profile", "/"], "profile '/': is a directory"),
            (["--site", "loop_0=taped"], "Did you mean 'main/loop_0'?"),
            (["--site", "main/loop_0=checkpoint(segment=2)"], "Did you mean 'checkpointed'?"),
            (["--loss", "ys"], "expected a scalar, found float32[?, ?]"),
        ],
        ids=lambda value: "_".join(value) if isinstance(value, list) else "",
    )
    def test_option_is_refused_in_one_line(
        self, arguments: list[str], message: str, loop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(loop.parent)
        assert message in refused(call("transform", loop, *arguments))
        assert [entry.name for entry in loop.parent.iterdir()] == ["loop.onnx"]

    @pytest.mark.parametrize("command", ["transform", "expand", "inspect", "plan", "validate"])
    def test_working_directory_is_no_model(self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert ".: is a directory, not an ONNX model" in refused(call(command, "."))

    @pytest.mark.parametrize("command", ["transform", "expand", "inspect", "plan", "validate"])
    def test_standard_input_is_not_read(self, command: str) -> None:
        assert "-: standard input is not read" in refused(call(command, "-"))

    def test_nothing_to_expand_is_told(self, loop: Path) -> None:
        told = "nothing to expand: the model has no training operators"
        assert f"warning: {told}" in call("expand", loop).stdout
        assert json.loads(call("expand", loop, "--json").stdout)["warnings"] == [told]

    def test_artifact_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "manifest.json").write_text("{}")
        assert "is what `compile` wrote" in refused(call("inspect", tmp_path))

    def test_file_of_a_plan_is_named(self, loop: Path) -> None:
        path = loop.with_name("broken.json")
        path.write_text("{")
        for kind in ("plan", "profile"):
            assert f"{kind} '{path}': expected the JSON" in refused(call("plan", loop, f"--{kind}", path))

    def test_input_file_that_does_not_fit_is_named(self, loop: Path, inputs: Path) -> None:
        path = loop.with_name("short.npz")
        np.savez(path, **{name: array for name, array in FEEDS.items() if name != "w"})
        message = refused(call("profile", loop, "--inputs", inputs, "--inputs", path))
        assert f"{path}: inputs: no value is given for 'w'" in message

    def test_output_that_cannot_be_is_refused(self, loop: Path, tmp_path: Path) -> None:
        content = loop.read_bytes()
        assert "the output is a directory" in refused(call("transform", loop, "-o", tmp_path))
        assert "does not exist" in refused(call("transform", loop, "-o", tmp_path / "no" / "out.onnx"))
        assert "the output is the input file" in refused(call("transform", loop, "-o", loop))
        assert loop.read_bytes() == content
        assert [entry.name for entry in tmp_path.iterdir()] == ["loop.onnx"]

    @pytest.mark.parametrize("command", ["transform", "inspect", "plan", "validate", "expand"])
    def test_a_model_without_a_name_is_refused(self, command: str) -> None:
        assert "is a directory, not an ONNX model" in refused(call(command, ""))

    def test_an_output_that_is_named_twice_is_one(self, loop: Path) -> None:
        report = json.loads(call("transform", loop, "--outputs", "y", "--outputs", "y", "--json").stdout)
        assert report["outputs"] == ["y"]

    def test_arrays_of_nothing_are_not_made_up(self, loop: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "nothing.npz")
        assert "no value is given for 'x'" in refused(call("validate", loop, "--inputs", tmp_path / "nothing.npz"))

    @pytest.mark.parametrize("command", ["inspect", "validate"])
    @pytest.mark.parametrize("make", [directory, absent, text_file, truncated], ids=lambda make: make.__name__)
    def test_other_commands_refuse_too(self, command: str, make: Any, tmp_path: Path) -> None:
        refused(call(command, make(tmp_path)))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"w": None}, "no value is given for 'w'"),
            ({"x": np.zeros((2, 1), np.float32)}, "input 'x': expected float32[N], found float32[2, 1]"),
            ({"x": np.zeros(2)}, "input 'x': expected float32[N], found float64[2]"),
            ({"more": np.zeros(2)}, "input 'more': the model has no such input"),
        ],
    )
    @pytest.mark.parametrize("command", ["run", "validate"])
    def test_arrays_that_do_not_fit(self, command: str, changes: dict[str, Any], message: str, loop: Path) -> None:
        path = loop.with_name("bad.npz")
        np.savez(path, **{name: a for name, a in {**FEEDS, **changes}.items() if a is not None})
        target = loop.with_name("out.npz")
        where = ["-o", target] if command == "run" else []
        assert message in refused(call(command, loop, "--inputs", path, *where))
        assert not target.exists()

    def test_file_that_is_no_npz(self, loop: Path) -> None:
        assert "is not a readable .npz file" in refused(call("validate", loop, "--inputs", loop))
        assert "there is no such file" in refused(call("validate", loop, "--inputs", loop.with_name("no.npz")))

    def test_missing_argument_is_a_usage_error(self) -> None:
        assert call("transform").exit_code == 2
        assert call("differentiate").exit_code == 2

    def test_unexpected_error_is_one_line_that_asks_for_a_report(
        self, loop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("by\nzero")

        monkeypatch.setattr("onnx_cfad.inspection.inspect", fail)
        text = refused(call("inspect", loop))
        assert "unexpected ZeroDivisionError: by zero" in text
        assert "please report" in text

    def test_memory_that_is_not_there_is_no_bug(self, loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise MemoryError("Unable to allocate 7 TiB")

        monkeypatch.setattr("onnx_cfad.inspection.inspect", fail)
        assert refused(call("inspect", loop)).startswith("error: there is not enough memory (Unable to allocate 7 TiB)")

    def test_inputs_that_are_too_large_are_not_made_up(self, tmp_path: Path) -> None:
        text = "g (float[1000000000000] x) => (float[1000000000000] y) { y = Mul (x, x) }"
        source = saved(text, tmp_path / "big.onnx")
        assert "input 'x': no value is made up for one as large" in refused(call("validate", source))

    def test_debug_shows_where_an_error_was(self, loop: Path) -> None:
        result = call("--debug", "transform", loop, "--wrt", "q")
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert "selection.py" in result.stderr
