"""From a model to an artifact and its results: what is written, kept, checked and refused; the commands that do it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner, Result

import onnx_cfad as cfad
from onnx_cfad.arrays import read_npz
from onnx_cfad.cli import app
from onnx_cfad.errors import ModelError, TargetError, ValidationError
from onnx_cfad.targets import compilation
from onnx_cfad.targets.base import Artifact, Limits, Options
from onnx_cfad.targets.compilation import compile_model, open_artifact
from onnx_cfad.targets.manifest import InputEntry, Manifest
from onnx_cfad.targets.tvm import environments, llvm

ROOT = Path(__file__).parents[2]
BUILDS = [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
both = pytest.mark.parametrize("build", BUILDS)

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
decay (float[3] x, float[3] w, int64 n, bool go) => (float[3] y) {
    y = Loop (n, go, x) <body = step (int64 i, bool on, float[3] h) => (bool again, float[3] next) {
        again = Identity (on)
        scaled = Mul (h, w)
        next = Tanh (scaled)
    }>
}
"""
FEEDS: dict[str, Any] = {
    "x": np.asarray([0.5, -1.0, 2.0], np.float32),
    "w": np.asarray([1.5, 0.5, -0.75], np.float32),
    "n": np.asarray(4),
    "go": np.asarray(True),
    "y_grad": np.asarray([1.0, 2.0, -1.0], np.float32),
}


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


def closed_form(feeds: dict[str, Any]) -> dict[str, Any]:
    """The outputs and gradients of MODEL, by the chain rule in float64."""
    h, w = feeds["x"].astype(np.float64), feeds["w"].astype(np.float64)
    states = [h]
    for _ in range(int(feeds["n"])):
        states.append(np.tanh(states[-1] * w))
    ct, w_grad = feeds["y_grad"].astype(np.float64), np.zeros(3)
    for before, after in zip(states[-2::-1], states[:0:-1], strict=True):
        inner = ct * (1 - after**2)
        w_grad += inner * before
        ct = inner * w
    return {"y": states[-1], "x_grad": ct, "w_grad": w_grad}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def gradient(tmp_path: Path) -> Path:
    path = tmp_path / "decay.grad.onnx"
    cfad.vjp(model()).save(path)
    np.savez(tmp_path / "in.npz", **FEEDS)
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@both
@pytest.mark.parametrize("form", ["auto", "host"])
def test_gradient_is_compiled_and_runs_in_a_fresh_process(
    build: str, form: str, gradient: Path, tmp_path: Path
) -> None:
    inputs, output, results = tmp_path / "in.npz", tmp_path / "out", tmp_path / "y.npz"
    options = ["--target", "llvm", "--with", build, "--form", form, "--inputs", inputs]
    done = call("compile", gradient, *options, "-o", output)
    assert done.exit_code == 0, done.stderr
    assert "against ONNX Runtime: largest relative error" in done.stdout
    words = [sys.executable, "-m", "onnx_cfad", "run", output, "--inputs", inputs, "-o", results]
    subprocess.run(list(map(str, words)), check=True, cwd=ROOT, capture_output=True)
    found, expected = read_npz(results), closed_form(FEEDS)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["stamp"]["build"] == build
    assert max(manifest["errors"].values()) < 1e-5


@pytest.mark.relay
def test_artifact_in_python_runs_again_on_other_values() -> None:
    artifact = cfad.compile(cfad.vjp(model()), target="llvm", feeds=FEEDS)
    for n in (4, 0, 7):
        feeds = {**FEEDS, "n": np.asarray(n), "x": FEEDS["x"] * 0.5}
        for name, value in artifact.run(feeds).items():
            np.testing.assert_allclose(value, closed_form(feeds)[name], rtol=1e-5, err_msg=f"{name}, {n} trips")
    with pytest.raises(ModelError, match=r"input 'x': expected float32\[3\], found float32\[2\]"):
        artifact.run({**FEEDS, "x": np.zeros(2, np.float32)})


@pytest.mark.relay
def test_second_compilation_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = compile_model(model(), "llvm", tmp_path / "first", options=Options("relay"))
    monkeypatch.setattr("onnx_cfad.targets.tvm.llvm.Llvm.lower", None)
    second = compile_model(model(), "llvm", tmp_path / "second", options=Options("relay"))
    assert first.manifest == second.manifest
    assert compilation.artifact_cache().size()[0] == 1


def compile_to(folder: Path) -> None:
    feeds = {name: FEEDS[name] for name in ("x", "w", "n", "go")}
    artifact = compile_model(model(), "llvm", folder, feeds=feeds, options=Options("relay"))
    np.testing.assert_allclose(artifact.run(feeds)["y"], closed_form(FEEDS)["y"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.relay
def test_processes_compile_the_same_model_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=compile_to, args=(tmp_path / str(number),)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert open_artifact(tmp_path / "0").manifest.files.keys() == open_artifact(tmp_path / "1").manifest.files.keys()
    assert compilation.artifact_cache().size()[0] == 1


@pytest.mark.relay
def test_difference_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = compilation.Session.run
    monkeypatch.setattr(compilation.Session, "run", lambda *args: {"y": run(*args)["y"] * np.float32(1.001)})
    with pytest.raises(
        ValidationError, match=r"output 'y': .*relative error 1\.0e-03, tolerance 1e-05.*(made-up).*--no-check"
    ):
        compile_model(model(), "llvm", tmp_path / "out", options=Options("relay"))
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]
    assert compilation.artifact_cache().size()[0] == 0
    compile_model(model(), "llvm", tmp_path / "out", options=Options("relay"), rtol=1e-2)
    unchecked = compile_model(model(), "llvm", tmp_path / "out", options=Options("relay"), check=False)
    assert unchecked.manifest.errors is None


@pytest.mark.relay
def test_whole_program_that_differs_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> f (float[3] x) => (float[3] y) { y = Tanh (x) }'
    )
    feeds = {"x": FEEDS["x"]}
    whole = compile_model(straight, "llvm", feeds=feeds, options=Options("relay"))
    assert whole.manifest.form.startswith("one program")
    run_whole = llvm._run_whole
    monkeypatch.setattr(llvm, "_run_whole", lambda *args: [array * 2 for array in run_whole(*args)])
    hosted = compile_model(straight, "llvm", feeds=feeds, options=Options("relay", threads=2))
    assert hosted.manifest.form == "a host program over 1 bodies"
    assert "output 'y' differs from ONNX Runtime: relative error 1.0e+00" in hosted.manifest.notes[0]
    np.testing.assert_allclose(hosted.run(feeds)["y"], np.tanh(FEEDS["x"]), rtol=1e-6)
    with pytest.raises(ValidationError, match="differ on sample inputs"):
        compile_model(straight, "llvm", feeds=feeds, options=Options("relay", "whole"))


@pytest.mark.relay
def test_artifact_that_was_changed_is_refused(tmp_path: Path) -> None:
    compile_model(model(), "llvm", tmp_path / "out", options=Options("relay"))
    with (tmp_path / "out" / "model.so").open("ab") as file:
        file.write(b"x")
    with pytest.raises(TargetError, match=r"'model\.so' is not the file that was compiled"):
        open_artifact(tmp_path / "out")


@pytest.mark.relay
def test_artifact_for_another_processor_or_release_is_refused(tmp_path: Path) -> None:
    compile_model(model(), "llvm", tmp_path / "out", options=Options("relay"))
    path = tmp_path / "out" / "manifest.json"
    written = path.read_text()
    manifest = json.loads(written)
    manifest["stamp"]["processor"] = "btver1"
    path.write_text(json.dumps(manifest))
    with pytest.raises(TargetError, match="compiled for the processor btver1, and this is"):
        open_artifact(tmp_path / "out")
    manifest = json.loads(written)
    manifest["stamp"]["versions"]["tvm"] = "0.19.1"
    path.write_text(json.dumps(manifest))
    with pytest.raises(TargetError, match=r"compiled by TVM 0\.19\.1, and this is 0\.19\.0"):
        open_artifact(tmp_path / "out")


def test_missing_target_is_one_line_with_the_command_that_fixes_it(
    gradient: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for kind in ("relay", "relax"):
        monkeypatch.delenv(environments.variable(kind), raising=False)
    told = "is not installed. Run: onnx-cfad targets install"
    assert f"TVM Relax: it {told} relax" in refused(
        call("compile", gradient, "--target", "llvm", "--with", "relax", "-o", tmp_path / "out")
    )
    assert "onnx-cfad targets install relay" in refused(
        call("compile", gradient, "--target", "llvm", "-o", tmp_path / "o")
    )
    assert f"TVM Relay: it {told} relay" in refused(call("targets", "check", "relay"))
    listed = call("targets", "list")
    assert "not installed: onnx-cfad targets install relax" in listed.stdout
    assert "llvm, cuda" in listed.stdout
    assert "no build of TVM is installed. Run: onnx-cfad targets install relay relax" in refused(
        call("targets", "check")
    )
    monkeypatch.setenv("ONNX_CFAD_RELAY_PYTHON", str(tmp_path / "python"))
    assert "ONNX_CFAD_RELAY_PYTHON names" in refused(call("targets", "check", "relay"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target", "ascend", "-o", "{}/out"], "target 'ascend': it is not available: nothing here writes kernels"),
        (["--target", "tpu", "-o", "{}/out"], "target 'tpu': there is no such target to compile for"),
        (["--target", "llvm", "-o", "{}/none/out"], "the folder of the output does not exist"),
        (["--target", "llvm", "-o", "{}/in.npz"], "the output is a file"),
        (["--target", "llvm", "-o", "{}"], "the output is a folder that holds something else"),
        (["--target", "llvm", "--form", "odd", "-o", "{}/out"], "form 'odd': there is no such form"),
        (["--target", "llvm", "--with", "odd", "-o", "{}/out"], "target 'odd': there is no such build of TVM"),
        (["--target", "llvm", "--rtol", "-1", "-o", "{}/out"], "rtol -1.0: expected a number between 0 and 1"),
        (["--target", "llvm", "--rtol", "nan", "-o", "{}/out"], "rtol nan: expected a number between 0 and 1"),
        (["--target", "cuda", "--form", "host", "-o", "{}/out"], "form 'host': is for the target llvm alone"),
        (["--target", "cuda", "--processor", "znver4", "-o", "{}/out"], "processor 'znver4': is for the target llvm"),
    ],
)
def test_what_cannot_be_is_said_at_once(gradient: Path, tmp_path: Path, arguments: list[str], told: str) -> None:
    before = sorted(tmp_path.iterdir())
    assert told in refused(call("compile", gradient, *(argument.format(tmp_path) for argument in arguments)))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "number", [Options(threads=0), Options(limits=Limits(0.0)), Options(limits=Limits(float("nan")))]
)
def test_numbers_out_of_range_are_refused(number: Options) -> None:
    with pytest.raises(ModelError, match=r"(threads 0|timeout (0\.0|nan)): expected"):
        compile_model(model(), "llvm", options=number)


@both
def test_processor_that_llvm_does_not_know_is_refused(build: str) -> None:
    """LLVM itself would compile for the oldest processor there is, without a word."""
    told = r"processor 'zenver4': LLVM knows no processor of that name\. Such as .*znver4.*native"
    with pytest.raises(TargetError, match=told):
        compile_model(
            model(),
            "llvm",
            feeds={name: FEEDS[name] for name in ("x", "w", "n", "go")},
            options=Options(build, processor="zenver4"),
        )


@both
def test_processor_is_named(build: str) -> None:
    artifact = compile_model(
        model(),
        "llvm",
        feeds={name: FEEDS[name] for name in ("x", "w", "n", "go")},
        options=Options(build, processor="x86-64-v2"),
    )
    assert artifact.manifest.stamp["processor"] == "x86-64-v2"


@pytest.mark.relax
def test_gradient_is_compiled_without_inputs(tmp_path: Path) -> None:
    """The output has symbols of its own, so the seed could have any size."""
    text = MODEL.replace("float[3]", "float[N]").replace("(float[N] y) {\n    y = Loop", "(float[M] y) {\n    y = Loop")
    gradient = cfad.vjp(onnx.parser.parse_model(text), wrt=["x"])
    artifact = compile_model(gradient.model, "llvm", tmp_path / "out", options=Options("relax"))
    shapes = {entry.name: entry.shape for entry in artifact.manifest.inputs}
    assert shapes["y_grad"] == shapes["x"]


def test_manifest_that_no_target_has_written_is_refused(tmp_path: Path) -> None:
    plain = {"target": "llvm", "form": "", "model": "", "stamp": {}, "inputs": [], "outputs": [], "program": {}}
    plain |= {"errors": None, "files": {}, "notes": [], "seconds": 0.0, "format": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(plain))
    with pytest.raises(TargetError, match=r"manifest\.json: it cannot be read: KeyError: 'build'"):
        open_artifact(tmp_path)


def test_folder_that_others_write_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final, new = tmp_path / "out", tmp_path / "new"
    for folder, text in ((final, "old"), (new, "new")):
        folder.mkdir()
        (folder / "file").write_text(text)
    rename, others = Path.rename, iter(["first", "second"])

    def meanwhile(self: Path, target: Path) -> Path:
        other = next(others, None) if self == new else None
        if other is not None:  # between the two steps, somebody else has put an artifact there
            final.mkdir()
            (final / "file").write_text(other)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", meanwhile)
    compilation._replace(final, new)
    assert (final / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folder_stays_where_it_cannot_be_replaced(tmp_path: Path) -> None:
    final = tmp_path / "out"
    final.mkdir()
    with pytest.raises(FileNotFoundError):
        compilation._replace(final, tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folder_without_an_artifact_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **FEEDS)
    line = refused(call("run", tmp_path, "--inputs", tmp_path / "in.npz", "-o", tmp_path / "y.npz"))
    assert "it holds no manifest.json" in line


@pytest.mark.relay
def test_model_runs_on_a_target_without_a_folder(gradient: Path, tmp_path: Path) -> None:
    arguments = ["--target", "llvm", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "y.npz"]
    assert call("run", gradient, *arguments).exit_code == 0
    found = read_npz(tmp_path / "y.npz")
    np.testing.assert_allclose(found["w_grad"], closed_form(FEEDS)["w_grad"], rtol=1e-5)


@both
def test_check_tries_a_build(build: str) -> None:
    found = json.loads(call("targets", "check", build, "--json").stdout)["targets"]
    assert [(entry["name"], entry["works"]) for entry in found] == [(build, True)]
    assert "tvm 0." in found[0]["what"]


def test_check_says_what_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module named tvm' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("ONNX_CFAD_RELAY_PYTHON", str(python))
    checked = call("targets", "check", "relay")
    assert checked.exit_code == 1
    assert "fails" in checked.stdout
    assert "no module named tvm" in checked.stdout


def test_clean_says_what_it_removes() -> None:
    assert call("targets", "clean").stdout.startswith("removed: 0 B from ")


class Still(Artifact):
    """One that is not run."""

    def _run(self, feeds: Any, limits: Limits) -> dict[str, Any]:
        raise AssertionError((feeds, limits))


def test_an_artifact_says_what_it_is() -> None:
    inputs = (InputEntry("x", "float32", (2, 3)), InputEntry("n", "int64", ()))
    made = Manifest("llvm", "relay, whole", "", {}, inputs, ("y", "x_grad"), {}, None, {}, (), 0.0)
    told = "<compiled for llvm, relay, whole: x float32[2, 3], n int64[] -> y, x_grad; in made>"
    assert str(Still(Path("made"), made)) == told
