"""The command line: what it writes, prints and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import onnx_cfad
from onnx_cfad.cli import app
from tests.onnx_text import LOOP, LOSS, model

FEEDS: dict[str, Any] = {
    "x": np.asarray([0.5, -1.0], np.float32),
    "w": np.asarray([1.5, 0.5], np.float32),
    "trips": np.asarray(3),
    "up": np.asarray(True),
}


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    return saved(LOOP, tmp_path / "loop.onnx")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, **FEEDS)
    return path


def saved(text: str, path: Path) -> Path:
    onnx.save(model(text), path)
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result) -> str:
    """The one line on standard error of a command that was given bad input."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def process(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnx_cfad", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


class TestTransform:
    def test_result_is_written_beside_the_model(self, loop: Path) -> None:
        result = call("transform", loop)
        assert result.exit_code == 0, result.output
        target = loop.with_name("loop.grad.onnx")
        written = onnx.load(target)
        onnx.checker.check_model(written, full_check=True)
        assert [i.name for i in written.graph.input] == ["x", "w", "trips", "up", "y_grad", "ys_grad"]
        assert [o.name for o in written.graph.output] == ["y", "ys", "x_grad", "w_grad"]
        assert {entry.name for entry in loop.parent.iterdir()} == {"loop.onnx", "loop.grad.onnx"}
        for text in ("main/loop_0", "main/loop_0/body/if_0", "dynamic", "taped", "routed", "by: x, w", str(target)):
            assert text in result.stdout
        assert result.stderr == ""

    def test_names_choose_what_is_differentiated(self, loop: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.onnx"
        assert call("transform", loop, "-o", target, "--wrt", "w", "--outputs", "ys", "--quiet").exit_code == 0
        written = onnx.load(target)
        assert [i.name for i in written.graph.input][4:] == ["ys_grad"]
        assert [o.name for o in written.graph.output][2:] == ["w_grad"]

    def test_loss_and_initializers(self, tmp_path: Path) -> None:
        source = saved(LOSS, tmp_path / "loss.onnx")
        assert call("transform", source, "--loss", "loss", "--wrt", "x", "--wrt-initializers").exit_code == 0
        written = onnx.load(tmp_path / "loss.grad.onnx")
        assert [i.name for i in written.graph.input] == ["x"]
        assert [o.name for o in written.graph.output] == ["loss", "x_grad", "w_grad"]

    def test_stopped_value_cuts(self, loop: Path) -> None:
        result = call("transform", loop, "--wrt", "w", "--stop-gradient", "p", "--json")
        assert "no differentiated output depends on 'w'" in json.loads(result.stdout)["warnings"][0]

    def test_json_is_one_object(self, loop: Path) -> None:
        result = call("transform", loop, "--json")
        report = json.loads(result.stdout)
        assert report["wrt"] == ["x", "w"]
        assert [site["path"] for site in report["sites"]] == ["main/loop_0", "main/loop_0/body/if_0"]
        assert report["output"] == str(loop.with_name("loop.grad.onnx"))
        assert report["nodes"][0] < report["nodes"][1]

    def test_names_of_seeds_and_gradients_are_listed(self, tmp_path: Path) -> None:
        text = """g (float[2] x, float[2] x_grad, bool up) => (float[2] y) {
            a = Mul (x, x_grad)
            y = If (up) <
                then_branch = t () => (float[2] r) <float[2] k = {5.0, 6.0}> { r = Mul (a, k) },
                else_branch = e () => (float[2] q) { k = Constant <value = float[2] {7.0, 8.0}> () q = Mul (a, k) }
            >
        }"""
        source = saved(text, tmp_path / "names.onnx")
        wanted = ("--wrt", "x", "--wrt", "main/if_0/else:k", "--wrt-initializers")
        gradients = {
            "x": "x_grad_2",
            "main/if_0/else:k": "main/if_0/else:k_grad",
            "main/if_0/then:k": "main/if_0/then:k_grad",
        }
        warning = "the gradient by 'x' is called 'x_grad_2': 'x_grad' is taken"
        for command in ("inspect", "transform"):
            report = json.loads(call(command, source, *wanted, "--json").stdout)
            assert (report["seeds"], report["gradients"]) == ({"y": "y_grad"}, gradients)
            assert report["remarks" if command == "inspect" else "warnings"] == [warning]
            shown = call(command, source, *wanted).stdout
            assert f"seeds: y_grad\ngradients: {', '.join(gradients.values())}\n" in shown
            assert f"warning: {warning}" in shown
        written = onnx.load(tmp_path / "names.grad.onnx")
        assert [o.name for o in written.graph.output] == ["y", *gradients.values()]
        assert {"main/if_0/else:k", "main/if_0/then:k"} <= {t.name for t in written.graph.initializer}
        assert "3 of 3 gradients hold" in call("validate", source, tmp_path / "names.grad.onnx").stdout

    def test_gradient_model_is_transformed_again_and_again(self, loop: Path) -> None:
        source = loop
        for count in (2, 4, 8):
            assert call("transform", source, "--trips", 3).exit_code == 0
            target = source.with_name(f"{source.stem}.grad.onnx")
            onnx.checker.check_model(onnx.load(target), full_check=True)
            assert f"{count} of {count} gradients hold" in call("validate", source, target).stdout
            source = target

    def test_quiet_says_nothing(self, loop: Path) -> None:
        result = call("transform", loop, "--quiet")
        assert (result.exit_code, result.output) == (0, "")

    def test_plan_is_chosen(self, loop: Path) -> None:
        result = call("transform", loop, "--plan", "checkpointed", "--segment", 2, "--json")
        assert json.loads(result.stdout)["sites"][0]["adjoint"] == "checkpointed(segment=2,levels=2)"

    @pytest.mark.parametrize("limit", ["inf", "nan", "-1", "0"])
    @pytest.mark.parametrize("option", ["--clip-value", "--clip-norm"])
    def test_limits_out_of_range_are_refused(self, loop: Path, option: str, limit: str) -> None:
        result = call("transform", loop, f"{option}={limit}")
        assert result.exit_code == 2
        assert "expected a finite number above 0" in result.stderr
        assert not loop.with_name("loop.grad.onnx").exists()

    def test_options_without_effect_are_told(self, loop: Path) -> None:
        given = ("--plan", "taped", "--segment", 2, "--levels", 2)
        expected = [
            "segment has no effect: no loop is checkpointed",
            "levels has no effect: no loop is checkpointed",
        ]
        implicit = call("transform", loop, "--implicit-outputs", "--implicit-fallback", "nan").stdout
        for name in ("implicit_outputs", "implicit_fallback"):
            assert f"warning: {name} has no effect: no loop is implicit" in implicit
        assert json.loads(call("transform", loop, *given, "--json").stdout)["warnings"] == expected
        assert json.loads(call("plan", loop, *given, "--json").stdout)["warnings"] == expected
        assert json.loads(call("plan", loop, "--json").stdout)["warnings"] == []
        assert all(f"warning: {text}" in call("plan", loop, *given).stdout for text in expected)
        assert "no effect" not in call("plan", loop, "--plan", "checkpointed", "--segment", 2, "--trips", 9).stdout

    def test_options_of_loops_are_told_where_there_is_none(self, tmp_path: Path) -> None:
        source = saved(LOSS, tmp_path / "loss.onnx")
        shown = call("plan", source, "--trips", 5, "--tape", "float16", "--memory", "1MiB").stdout
        for name in ("memory", "tape", "trips"):
            assert f"warning: {name} has no effect: the model has no loop" in shown

    def test_dash_is_standard_output_for_a_plan_only(
        self, loop: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert json.loads(call("plan", loop, "-o", "-").stdout)["version"] == 1
        assert "output '-'" in refused(call("transform", loop, "-o", "-"))
        assert "output '-'" in refused(call("run", loop, "--inputs", inputs, "-o", "-"))
        assert not (tmp_path / "-").exists()

    def test_plan_can_be_given_back(self, loop: Path, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        plan.write_text(onnx_cfad.vjp(loop).plan.to_json().replace("taped", "checkpointed(segment=3,levels=2)"))
        result = call("transform", loop, "--plan", plan, "--json")
        assert json.loads(result.stdout)["sites"][0]["adjoint"] == "checkpointed(segment=3,levels=2)"

    def test_existing_result_is_replaced(self, loop: Path) -> None:
        loop.with_name("loop.grad.onnx").write_text("old")
        assert call("transform", loop).exit_code == 0
        onnx.checker.check_model(onnx.load(loop.with_name("loop.grad.onnx")))


def _directory(folder: Path) -> Path:
    return folder


def _text(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is no model\n" * 20)
    return path


def _truncated(folder: Path) -> Path:
    path = folder / "truncated.onnx"
    content = model(LOOP).SerializeToString()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


def _absent(folder: Path) -> Path:
    return folder / "absent.onnx"


def _empty(folder: Path) -> Path:
    path = folder / "empty.onnx"
    path.touch()
    return path


def _integers(folder: Path) -> Path:
    return saved("g (int64[2] n) => (int64[2] m) { m = Add (n, n) }", folder / "integers.onnx")


def _integer_inputs(folder: Path) -> Path:
    return saved("g (int64[2] n) => (float[2] y) { y = Cast <to = 1> (n) }", folder / "integer_inputs.onnx")


def _unsupported(folder: Path) -> Path:
    proto = model("g (float[2] x) => (float[2] y) { y = Sin (x) }")
    proto.graph.node[0].op_type, proto.graph.node[0].domain, proto.graph.node[0].name = "Own", "own", "n"
    proto.opset_import.add(domain="own", version=1)
    onnx.save(proto, folder / "own.onnx")
    return folder / "own.onnx"


BAD_MODELS = [
    (_directory, "is a directory"),
    (_absent, "there is no such file"),
    (_empty, "the file is empty"),
    (_text, "is not an ONNX model"),
    (_truncated, "is not an ONNX model"),
    (_integers, "no floating-point output"),
    (_integer_inputs, "no floating-point input"),
    (_unsupported, "Own 'n': no VJP rule for own::Own"),
]


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
        ],
        ids=lambda value: "_".join(value) if isinstance(value, list) else "",
    )
    def test_option_is_refused_in_one_line(self, arguments: list[str], message: str, loop: Path) -> None:
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
        assert f"plan '{path}': expected the JSON" in refused(call("plan", loop, "--plan", path))

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
    @pytest.mark.parametrize("make", [_directory, _absent, _text, _truncated], ids=lambda make: make.__name__)
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

    def test_debug_shows_where_an_error_was(self, loop: Path) -> None:
        result = call("--debug", "transform", loop, "--wrt", "q")
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert "selection.py" in result.stderr


class TestInspect:
    def test_tree_of_sites(self, loop: Path) -> None:
        result = call("inspect", loop)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        (at,) = [number for number, line in enumerate(lines) if "Loop loop_0" in line]
        assert "trips: dynamic" in lines[at]
        assert "s* float32[N]" in lines[at + 1]
        assert any("If body/if_0" in line for line in lines[at:])
        assert "every operator has a rule" in result.stdout

    def test_operators_without_a_rule_are_no_failure(self, tmp_path: Path) -> None:
        result = call("inspect", _unsupported(tmp_path))
        assert result.exit_code == 0
        assert "own::Own" in result.stdout

    def test_json_is_the_same_tree(self, loop: Path) -> None:
        report = json.loads(call("inspect", loop, "--json").stdout)
        (site,) = report["sites"]
        assert site["kind"] == "Loop"
        assert site["carries"] == [{"name": "s", "type": "float32[N]", "active": True}]
        assert site["sites"][0]["path"] == "main/loop_0/body/if_0"


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


class TestProcess:
    """Real runs: what a shell sees."""

    def test_version(self, tmp_path: Path) -> None:
        done = process("--version", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"onnx-cfad {onnx_cfad.__version__}\n", "")

    def test_heavy_modules_are_not_imported_to_say_the_version(self, tmp_path: Path) -> None:
        code = (
            "import sys; from onnx_cfad.cli import app\n"
            "try: app(['--version'])\n"
            "except SystemExit: pass\n"
            "print([m for m in ('onnxruntime', 'torch', 'rich.table') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_whole_way_without_a_word_on_standard_error(self, loop: Path, tmp_path: Path) -> None:
        for arguments in (["inspect", loop], ["transform", loop], ["validate", loop, loop.with_name("loop.grad.onnx")]):
            done = process(*arguments, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), done
            assert "\x1b" not in done.stdout

    def test_bad_input_is_one_line_and_leaves_no_file(self, tmp_path: Path) -> None:
        source = _truncated(tmp_path)
        done = process("transform", source.name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: truncated.onnx: ")
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == [source]

    def test_reader_that_goes_away_is_no_bug(self, loop: Path, tmp_path: Path) -> None:
        command = f"{sys.executable} -m onnx_cfad inspect {loop.name} | head -n 1"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "report" not in done.stderr
