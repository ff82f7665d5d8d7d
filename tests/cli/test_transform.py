"""`transform`: what it writes, prints and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import onnx_cfad
from tests.cli.calls import call, refused, saved
from tests.onnx_text import LOSS


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
