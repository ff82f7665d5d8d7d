"""NVIDIA's compiler, where it is installed: CUDA C to PTX and to the machine code of one architecture."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from onnx_cfad.errors import TargetError

ARCHITECTURES = ("sm_80", "sm_90")
"""What artifacts are compiled for: A100 and H100/H200."""

Form = Literal["ptx", "cubin"]

_REMEDY = "Put nvcc on the PATH, or set ONNX_CFAD_NVCC to it (CUDA toolkit 12 or newer)."
_SECONDS = 600.0


def find() -> Path | None:
    """nvcc: what ONNX_CFAD_NVCC names, else the one on the PATH, else that of CUDA_HOME; None where there is none."""
    given = os.environ.get("ONNX_CFAD_NVCC")
    if given:
        return Path(given)
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("nvcc") or (shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None)
    return Path(found) if found else None


def version(nvcc: Path) -> str:
    """Its release, such as "13.0"."""
    text = _run([str(nvcc), "--version"])
    found = re.search(r"release (\d+\.\d+)", text)
    return found.group(1) if found else "unknown"


def compiled(source: str, architecture: str, form: Form, nvcc: Path | None = None) -> bytes:
    """CUDA C compiled for one architecture.

    Args:
        source: CUDA C.
        architecture: Such as ``sm_80``.
        form: PTX, which a driver compiles further, or machine code.
        nvcc: The compiler; default: the one that ``find`` finds.

    Raises:
        TargetError: There is no nvcc, or it refuses the source; with its first error.
    """
    return _compiled(source, [f"-{form}", f"-arch={architecture}"], nvcc)


def fat_binary(source: str, architectures: Sequence[str] = ARCHITECTURES, nvcc: Path | None = None) -> bytes:
    """CUDA C compiled to the machine code of several architectures by one call; see ``compiled``."""
    code = [f"-gencode=arch={a.replace('sm', 'compute')},code={a}" for a in architectures]
    return _compiled(source, ["-fatbin", *code], nvcc)


def _compiled(source: str, options: Sequence[str], nvcc: Path | None) -> bytes:
    compiler = nvcc or find()
    if compiler is None:
        raise TargetError("nvcc", "it is not installed", _REMEDY)
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "kernels.cu", Path(folder) / "kernels.made"
        text.write_text(source, encoding="utf-8")
        _run([str(compiler), *options, "-O3", "-w", "-o", str(made), str(text)])
        return made.read_bytes()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except OSError as error:
        raise TargetError("nvcc", f"{command[0]} cannot be run: {error.strerror}", _REMEDY) from error
    except subprocess.TimeoutExpired as error:
        raise TargetError("nvcc", f"it took more than {_SECONDS:g} s") from error
    if done.returncode:
        errors = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
        raise TargetError("nvcc", (errors or ["exit code " + str(done.returncode)])[0].strip(), _REMEDY)
    return done.stdout
