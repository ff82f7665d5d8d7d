"""The command line called, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from typer.testing import CliRunner, Result

from onnx_cfad.cli import app
from tests.onnx_text import model

ROOT = Path(__file__).parents[2]
FEEDS: dict[str, Any] = {
    "x": np.asarray([0.5, -1.0], np.float32),
    "w": np.asarray([1.5, 0.5], np.float32),
    "trips": np.asarray(3),
    "up": np.asarray(True),
}


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


def process(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnx_cfad", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0],
        errors="replace",
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
