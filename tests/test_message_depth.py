"""A gradient whose file could not be read again is refused before it is written."""

from __future__ import annotations

import pathlib

import onnx
import pytest
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from onnx_cfad.errors import ModelError
from tests.oracle import session


def nested_loops(depth: int) -> onnx.ModelProto:
    """Loops of dynamic trip count inside each other, which the automatic plan checkpoints."""
    body = "p = Mul (s, w) n = Sin (p)"
    for level in reversed(range(depth)):
        state = "x" if level == 0 else f"s{level - 1}"
        entry = "s" if level == depth - 1 else f"s{level}"
        result = "y" if level == 0 else f"n{level - 1}"
        given = "n" if level == depth - 1 else f"n{level}"
        body = f"""{result} = Loop (trips, true, {state}) <
            body = b{level} (int64 i{level}, bool g{level}, float[2] {entry}) => (bool a{level}, float[2] {given}) {{
                a{level} = Identity (g{level}) {body}
            }}>"""
    header = '<ir_version: 10, opset_import: ["": 21]> m (float[2] x, float[2] w, int64 trips) => (float[2] y)'
    return onnx.parser.parse_model(f"{header} <bool true = {{1}}> {{ {body} }}")


@pytest.mark.parametrize(("plan", "deepest"), [pytest.param("auto", 10, marks=pytest.mark.slow), ("taped", 15)])
def test_the_deepest_nest_that_can_be_read_is_written_and_one_more_is_not(
    plan: str, deepest: int, tmp_path: pathlib.Path
) -> None:
    gradient = cfad.vjp(nested_loops(deepest), plan=plan)
    gradient.save(tmp_path / "gradient.onnx")
    session(onnx.load(tmp_path / "gradient.onnx"), optimise=False)
    deeper = cfad.vjp(nested_loops(deepest + 1), plan=plan)
    for write in (deeper.proto, lambda: deeper.save(tmp_path / "deeper.onnx")):
        with pytest.raises(ModelError, match="nested so deep that the file could not be read: .*protobuf reads 100"):
            write()
    assert {path.name for path in tmp_path.iterdir()} == {"gradient.onnx"}


def test_the_command_refuses_in_one_line_and_writes_nothing(tmp_path: pathlib.Path) -> None:
    onnx.save(nested_loops(11), tmp_path / "model.onnx")
    result = CliRunner().invoke(app, ["transform", str(tmp_path / "model.onnx")])
    assert result.exit_code == 2
    assert "--plan taped" in result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}
    assert CliRunner().invoke(app, ["transform", str(tmp_path / "model.onnx"), "--plan", "taped"]).exit_code == 0
