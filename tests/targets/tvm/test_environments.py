"""The environments of the builds of TVM: pinned, found by a variable or installed, whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.builds import BUILDS


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for kind in BUILDS:
        monkeypatch.delenv(environments.variable(kind), raising=False)


@pytest.mark.parametrize("kind", list(BUILDS))
def test_every_requirement_is_pinned_and_hashed(kind: str) -> None:
    text = environments.requirements(kind).read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert lines
    assert all(re.match(r"[\w.-]+==[\w.]+( ;.*)? \\$", line) for line in lines)
    assert text.count("--hash=sha256:") >= len(lines)
    assert "://" not in text


@pytest.mark.parametrize("kind", list(BUILDS))
def test_pinned_release_is_the_one_that_is_expected(kind: str) -> None:
    package = {"relay": "xtc-tvm-python-bindings", "relax": "apache-tvm"}[kind]
    found = re.search(rf"^{package}==(\d+\.\d+)\.", environments.requirements(kind).read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == BUILDS[kind].release


def test_variable_wins_over_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environments.find("relay") == environments.Found("relay", None)
    with pytest.raises(TargetError, match="not installed. Run: onnx-cfad targets install relay"):
        environments.interpreter("relay")
    python = environments.folder("relay") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environments.find("relay") == environments.Found("relay", python, "installed")
    assert environments.install("relay") == environments.folder("relay")  # nothing to do
    monkeypatch.setenv("ONNX_CFAD_RELAY_PYTHON", str(tmp_path / "other"))
    assert environments.find("relay").by == "ONNX_CFAD_RELAY_PYTHON"
    with pytest.raises(TargetError, match="ONNX_CFAD_RELAY_PYTHON names .*other, which does not exist"):
        environments.interpreter("relay")


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(TargetError, match="its packages are for Linux on x86_64, and this is linux on riscv64"):
        environments.install("relax")


@pytest.mark.slow
def test_installation_that_fails_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    told: list[str] = []
    with pytest.raises(TargetError, match=r"TVM Relax: cannot be installed: ERROR: .*try again"):
        environments.install("relax", told.append)
    assert list(environments.folder("relax").parent.iterdir()) == []
    assert told[0] == "installing TVM Relax: an environment"
