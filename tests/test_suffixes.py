"""A result is not written under the name of another kind of file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from onnx_cfad.cli import app
from tests.onnx_text import model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(model("g (float[2] x) => (float[2] y) { y = Tanh (x) }"), tmp_path / "tanh.onnx")
    np.savez(tmp_path / "in.npz", x=np.zeros(2, np.float32))
    return tmp_path / "tanh.onnx"


@pytest.mark.parametrize(
    ("command", "name", "remedy"),
    [
        ("run", "other.onnx", "Name an .npz file."),
        ("profile", "other.ONNX", "Name a .json file."),
        ("profile", "other.npz", "Name a .json file."),
        ("plan", "other.onnx", "Name a .json file."),
        ("transform", "other.npz", "Name an .onnx file."),
        ("expand", "other.json", "Name an .onnx file."),
    ],
)
def test_other_files_are_not_written_over(command: str, name: str, remedy: str, source: Path) -> None:
    other = source.with_name(name)
    other.write_text("another one")
    inputs = ["--inputs", str(source.with_name("in.npz"))] if command in ("run", "profile") else []
    result = CliRunner().invoke(app, [command, str(source), *inputs, "-o", str(other)])
    assert result.exit_code == 2
    assert remedy in result.stderr
    assert other.read_text() == "another one"
