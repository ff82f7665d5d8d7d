"""Folders that are being made: what a killed process leaves is removed, what a living one holds is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_cfad.targets import scratch
from onnx_cfad.targets.cache import Cache
from onnx_cfad.targets.scratch import remove_abandoned, scratch_folder

HOLD = """
import sys, time
from pathlib import Path
from onnx_cfad.targets.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print(folder.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 0.0)


def holding(final: Path) -> tuple[subprocess.Popen[str], str]:
    """A process that makes ``final``, and the name of the folder that it fills."""
    words = [sys.executable, "-c", HOLD, str(final)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(scratch.__file__).parents[2])
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_folder_of_a_killed_process_goes_with_the_next_one(tmp_path: Path) -> None:
    final, other = tmp_path / "model.llvm", tmp_path / ".other.0123456789abcdef"
    other.mkdir()  # of another artifact: its own next compilation removes it
    process, name = holding(final)
    try:
        with scratch_folder(final) as folder:
            assert {path.name for path in tmp_path.iterdir()} == {name, folder.name, other.name}
    finally:
        end(process)
    assert (tmp_path / name / "half").exists()
    with scratch_folder(final) as folder:
        assert {path.name for path in tmp_path.iterdir()} == {folder.name, other.name}
        (folder / "whole").touch()
        folder.rename(final)
    assert {path.name for path in tmp_path.iterdir()} == {final.name, other.name}
    assert (final / "whole").exists()


def test_clean_removes_what_killed_processes_left_in_the_cache(tmp_path: Path) -> None:
    process, name = holding(tmp_path / "key")
    Cache(tmp_path).clean()
    assert (tmp_path / name).exists()
    end(process)
    Cache(tmp_path).clean()
    assert not list(tmp_path.iterdir())


def test_young_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been made by a process that has not locked it yet."""
    monkeypatch.setattr(scratch, "_YOUNG_SECONDS", 60.0)
    (tmp_path / ".model.0123456789abcdef").mkdir()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir())


def test_folders_of_other_names_stay(tmp_path: Path) -> None:
    for name in (".git", "model.0123456789abcdef", ".model.0123", ".model.0123456789ABCDEF"):
        (tmp_path / name).mkdir()
    remove_abandoned(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
