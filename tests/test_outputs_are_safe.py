"""What is written never replaces what it must not: devices, pipes, the model itself; links and modes stay."""

from __future__ import annotations

import os
import pathlib
import shutil

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app

MODEL = pathlib.Path(__file__).parents[1] / "models" / "heat.onnx"


@pytest.mark.parametrize("command", ["transform", "plan"])
def test_pipes_are_refused(command: str, tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = CliRunner().invoke(app, [command, str(MODEL), "-o", str(pipe)])
    assert result.exit_code == 2
    assert "not a regular file" in result.output
    assert pipe.is_fifo()


def test_plan_never_overwrites_the_model(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(MODEL, model)
    result = CliRunner().invoke(app, ["plan", str(model), "-o", str(model)])
    assert result.exit_code == 2
    assert model.read_bytes() == MODEL.read_bytes()


@pytest.mark.parametrize("command", ["transform", "plan", "run"])
def test_files_of_weights_are_never_overwritten(command: str, tmp_path: pathlib.Path) -> None:
    model, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    exported = onnx.load(MODEL.with_name("gnmt_v2.onnx"))
    onnx.save(exported, model, save_as_external_data=True, location=weights.name, size_threshold=100)
    np.savez(tmp_path / "inputs.npz", x=np.zeros(1))
    before = weights.read_bytes()
    inputs = ["--inputs", str(tmp_path / "inputs.npz")] if command == "run" else []
    result = CliRunner().invoke(app, [command, str(model), *inputs, "-o", str(weights)])
    assert result.exit_code == 2
    assert "the output is" in result.output
    assert weights.read_bytes() == before


@pytest.mark.parametrize("overwritten", ["model.onnx", "inputs.npz"])
def test_run_never_overwrites_what_it_reads(overwritten: str, tmp_path: pathlib.Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", u=np.zeros(1))
    before = (tmp_path / overwritten).read_bytes()
    arguments = [tmp_path / "model.onnx", "--inputs", tmp_path / "inputs.npz", "-o", tmp_path / overwritten]
    result = CliRunner().invoke(app, ["run", *map(str, arguments)])
    assert result.exit_code == 2
    assert "the output is an input file" in result.output
    assert (tmp_path / overwritten).read_bytes() == before


def test_links_and_modes_stay(tmp_path: pathlib.Path) -> None:
    target, link = tmp_path / "target.onnx", tmp_path / "link.onnx"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    cfad.vjp(MODEL).save(link)
    assert link.is_symlink()
    assert target.read_bytes() != b"old"
    assert target.stat().st_mode & 0o777 == 0o600


def test_stopped_inputs_have_no_gradient() -> None:
    stopped = cfad.vjp(MODEL, wrt=["u", "source"], stop_gradient=["u"])
    assert any("'u'" in warning for warning in stopped.report.warnings)


@pytest.mark.parametrize("trips", [2**63 - 1, -1])
def test_numbers_out_of_reach_are_refused(trips: int) -> None:
    with pytest.raises(cfad.PlanError, match="expected a whole number from 0 to"):
        cfad.plan(MODEL, trips=trips)


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "sites": {}}',
        '{"version": 1, "sites": {"main/Loop": {"adjoint": "checkpointed", "segment": 5}}}',
        "[" * 100_000,
    ],
)
def test_plans_that_would_be_misread_are_refused(text: str, tmp_path: pathlib.Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    with pytest.raises(cfad.PlanError):
        cfad.vjp(MODEL, plan=plan)
