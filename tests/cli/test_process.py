"""Real runs: what a shell sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnx_cfad
from tests.cli.bad_models import truncated
from tests.cli.calls import process


class TestProcess:
    """Real runs: what a shell sees."""

    def test_version(self, tmp_path: Path) -> None:
        done = process("--version", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"onnx-cfad {onnx_cfad.__version__}\n", "")

    def test_shell_is_told_how_to_complete(self, tmp_path: Path) -> None:
        asked = {"_ONNX_CFAD_COMPLETE": "complete_bash", "COMP_WORDS": "onnx-cfad transform --wr", "COMP_CWORD": "2"}
        done = process("", cwd=tmp_path, **asked)
        assert done.stdout.split() == ["--wrt", "--wrt-initializers"]

    def test_help_fits_80_columns(self, tmp_path: Path) -> None:
        done = process("transform", "-h", cwd=tmp_path, COLUMNS="80")
        assert done.returncode == 0
        assert max(map(len, done.stdout.splitlines())) <= 80
        for title in ("What to differentiate", "How loops and branches are run backwards", "What becomes of gradients"):
            assert title in done.stdout

    def test_whole_way_without_a_word_on_standard_error(self, loop: Path, tmp_path: Path) -> None:
        for arguments in (["inspect", loop], ["transform", loop], ["validate", loop, loop.with_name("loop.grad.onnx")]):
            done = process(*arguments, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), done
            assert "\x1b" not in done.stdout

    def test_bad_input_is_one_line_and_leaves_no_file(self, tmp_path: Path) -> None:
        source = truncated(tmp_path)
        done = process("transform", source.name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: truncated.onnx: ")
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == [source]

    def test_reader_that_goes_away_is_no_bug(self, loop: Path, tmp_path: Path) -> None:
        command = f"{sys.executable} -m onnx_cfad inspect {loop.name} | head -n 1"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "report" not in done.stderr

    @pytest.mark.parametrize(("encoding", "branch"), [("utf-8:strict", "└── "), ("ascii", "`-- "), ("cp1252", "`-- ")])
    def test_any_encoding_of_the_terminal_will_do(self, encoding: str, branch: str, loop: Path) -> None:
        proto = onnx.load(loop)
        proto.graph.node[1].name, proto.graph.doc_string = "größe→", "größe→"
        source = loop.with_name(os.fsdecode(b"\xff.onnx"))
        onnx.save(proto, source)
        inspected = process("inspect", source, cwd=loop.parent, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert (inspected.returncode, inspected.stderr) == (0, "")
        assert f"\n{branch}Loop" in inspected.stdout
        written = process("transform", source, cwd=loop.parent, PYTHONIOENCODING=encoding)
        assert (written.returncode, written.stderr) == (0, "")
        assert "written: " in written.stdout
        refused = process("transform", source, "--wrt", "é", cwd=loop.parent, PYTHONIOENCODING=encoding)
        assert refused.stderr.startswith("error: wrt '")
