"""The environments of the workers: found by a variable or in the user's data folder, installed from pinned files."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.gaps import refuse_gap
from onnx_cfad.targets.scratch import scratch_folder
from onnx_cfad.targets.tvm.builds import BUILDS
from onnx_cfad.targets.tvm.worker import Worker

_REQUIREMENTS = Path(__file__).parents[1] / "requirements"
_TOLD = 300  # characters of an installer's last words


@dataclasses.dataclass(frozen=True)
class Found:
    """An interpreter for a build of TVM, and what named it.

    Attributes:
        kind: ``relay`` or ``relax``.
        python: The interpreter; None where there is none.
        by: The variable that gave it, or ``installed``.
    """

    kind: str
    python: Path | None
    by: str = ""


def variable(kind: str) -> str:
    """The environment variable that gives the interpreter for a build."""
    return f"ONNX_CFAD_{kind.upper()}_PYTHON"


def requirements(kind: str) -> Path:
    """The file of pinned and hashed requirements of a build."""
    return _REQUIREMENTS / f"{kind}.txt"


def folder(kind: str) -> Path:
    """Where the environment is installed; other requirements have another folder."""
    digest = hashlib.sha256(requirements(kind).read_bytes()).hexdigest()[:12]
    return user_data_path("onnx-cfad", appauthor=False) / "targets" / f"{kind}-{digest}"


def find(kind: str) -> Found:
    """The interpreter for a build: what the variable says, else the installed one, else none."""
    given = os.environ.get(variable(kind))
    if given:
        return Found(kind, Path(given), variable(kind))
    python = _python(folder(kind))
    return Found(kind, python, "installed") if python.exists() else Found(kind, None)


def interpreter(kind: str) -> Path:
    """The interpreter for a build.

    Raises:
        TargetError: There is none, or the build is unknown.
    """
    _check_kind(kind)
    python = find(kind).python
    if python is None:
        raise TargetError(BUILDS[kind].title, "it is not installed", f"Run: onnx-cfad targets install {kind}")
    if not python.exists():
        text = f"{variable(kind)} names {python}, which does not exist"
        raise TargetError(BUILDS[kind].title, text, f"Unset it and run: onnx-cfad targets install {kind}")
    return python


def install(kind: str, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Installs the environment of a build, checks that its TVM works, and gives its folder; at once where it is there.

    It appears whole or not at all, and two installations at once do not harm each other.

    Args:
        kind: ``relay`` or ``relax``.
        tell: Called with what is being done.

    Raises:
        TargetError: It cannot be installed, or does not work here.
    """
    _check_kind(kind)
    title, final = BUILDS[kind].title, folder(kind)
    if _python(final).exists():
        return final
    _check_platform(title)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(final) as temporary:
            tell(f"installing {title}: an environment")
            _run([sys.executable, "-m", "venv", str(temporary)], title, tell)
            words = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
            pinned = ["--require-hashes", "-r", str(requirements(kind))]
            _run([str(_python(temporary)), *words, *pinned], title, tell)
            tell(f"checking {title}")
            versions(kind, _python(temporary))
            with contextlib.suppress(OSError):  # another installation has been faster
                temporary.rename(final)
    except OSError as error:
        raise TargetError(title, f"cannot be installed: {error.strerror or error}: {error.filename}") from error
    if kind == "relay":
        tell(f"building the generator of CUDA for {title}")
        with contextlib.suppress(TargetError):  # what uses it says why it does not work
            build_generator(_python(final))
    return final


def generator_folder() -> Path:
    """Where the few lines are built that register Relay's generator of CUDA."""
    return user_cache_path("onnx-cfad", appauthor=False) / "relay_shim"


def build_generator(python: str | os.PathLike[str]) -> str:
    """Builds what registers Relay's generator of CUDA, where there is a compiler: ``shim``, else ``ctypes``.

    Raises:
        TargetError: The interpreter has another TVM, or one without a generator.
    """
    worker = Worker("relay", python)
    try:
        return str(worker.call("relay_cuda_generator", {"folder": str(generator_folder())})[0]["by"])
    finally:
        worker.close()


def versions(kind: str, python: str | os.PathLike[str]) -> dict[str, object]:
    """What a build runs on, by the name of the package.

    Raises:
        TargetError: The interpreter has no TVM that works, or another release of it.
    """
    worker = Worker(kind, python)
    try:
        return worker.call("versions")[0]
    finally:
        worker.close()


def _check_kind(kind: str) -> None:
    refuse_gap(kind)
    if kind not in BUILDS:
        raise TargetError(f"target '{kind}'", "there is no such build of TVM", f"There are {', '.join(BUILDS)}.")


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _check_platform(title: str) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        found = f"{sys.platform} on {platform.machine()}"
        raise TargetError(title, f"its packages are for Linux on x86_64, and this is {found}")


def _run(words: Sequence[str], title: str, tell: Callable[[str], None]) -> None:
    """Runs a step of an installation, and ends it where this process is interrupted."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        errors="replace",
    )  # fmt: skip
    said: list[str] = []
    try:
        for line in process.stdout or ():
            if line.strip():
                said.append(line.strip())
                tell(f"installing {title}: {said[-1][:80]}")
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
    if code:
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or [f"exit code {code}"]
        remedy = "Once the package index can be reached, try again; or name an interpreter that has it by a variable."
        raise TargetError(title, f"cannot be installed: {errors[0][:_TOLD]}", remedy)
