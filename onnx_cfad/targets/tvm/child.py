"""The child's side of a worker: run as ``PYTHON -I child.py relay|relax FOLDER``, it answers one JSON line with one.

The package itself is not imported here, whose dependencies the child's environment lacks: empty packages stand in for
``onnx_cfad`` and its folders, so that the few modules meant for a child are imported under their own names.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any, BinaryIO

_PACKAGE = Path(__file__).resolve().parents[2]
_STAND_INS = ("", "targets", "targets.tvm", "targets.cuda")


def main() -> None:
    """Answers requests until the parent closes its end."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    requests, answers = os.dup(0), os.dup(1)  # private: what libraries print goes to the log, what they read is empty
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _end_with_parent(requests, answers, folder)
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")  # or Relay tries to download its tuning logs
    _stand_in_for_packages()
    with os.fdopen(requests, "rb") as incoming, os.fdopen(answers, "wb") as outgoing:
        _serve(kind, folder, incoming, outgoing)


def _end_with_parent(requests: int, answers: int, folder: Path) -> None:
    """Starts a process that ends this one, and all that it started, as soon as the parent has closed its end.

    The parent may be killed while TVM computes and holds the interpreter, so no thread of this process would do.
    """
    worker = os.getpid()
    if os.fork():
        return
    os.close(answers)  # or the parent would not see that the worker has ended
    hangup = select.poll()
    hangup.register(requests, 0)
    hangup.poll()
    os.kill(worker, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _stand_in_for_packages() -> None:
    for part in _STAND_INS:
        name = f"onnx_cfad.{part}" if part else "onnx_cfad"
        package = types.ModuleType(name)
        package.__path__ = [str(_PACKAGE.joinpath(*part.split(".")))]
        sys.modules[name] = package


def _serve(kind: str, folder: Path, incoming: BinaryIO, outgoing: BinaryIO) -> None:
    commands = importlib.import_module("onnx_cfad.targets.tvm.commands")
    files = importlib.import_module("onnx_cfad.targets.tvm.array_files")
    importlib.import_module(f"onnx_cfad.targets.tvm.{kind}_worker")
    builds = importlib.import_module("onnx_cfad.targets.tvm.builds")
    _say(outgoing, {"ready": kind, **_what_is_there(builds.BUILDS[kind].functions)})
    for line in incoming:
        request = json.loads(line)
        try:
            arrays = files.take(request["arrays"], folder)
            result, results = commands.answer(request["command"], request["arguments"], arrays)
            reply = {"result": result, "arrays": files.put(results, folder, "answer")}
        except commands.Refused as error:
            reply = {"refused": commands.last_part(error), "body": error.body}
        except Exception as error:  # noqa: BLE001 - whatever TVM raises is the answer
            reply = {"failed": commands.last_part(error), "type": type(error).__name__}
        _say(outgoing, {**reply, "peak_bytes": _peak_bytes()})


def _what_is_there(functions: tuple[str, ...]) -> dict[str, Any]:
    """The version of TVM, and which of the functions it has not registered."""
    tvm = importlib.import_module("tvm")
    missing = [name for name in functions if tvm.get_global_func(name, allow_missing=True) is None]
    return {"tvm": tvm.__version__, "missing": missing}


def _say(outgoing: BinaryIO, reply: dict[str, Any]) -> None:
    outgoing.write(json.dumps(reply).encode() + b"\n")
    outgoing.flush()


def _peak_bytes() -> int | None:
    """The most memory this process has held at once; None where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    main()
