"""A worker: what it answers; what becomes of one that hangs, crashes, is killed, prints rubbish, loses its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.tvm.commands import last_part
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.worker import Worker

READY = """printf '{"ready": "relay", "tvm": "0.19.0", "missing": []}\\n'"""

LINE = """
<ir_version: 8, opset_import: ["" : 17]>
line (float[B, 3] x, float[3] u) => (float[B, 3] y) { a = Tanh (x)  y = Mul (a, u) }
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
power (float[3] x, int64 n, bool go) => (float[3] y) {
    y = Loop (n, go, x) <body = step (int64 i, bool on, float[3] h) => (bool again, float[3] next) {
        again = Identity (on)
        next = Mul (h, x)
    }>
}
"""

both = pytest.mark.parametrize(
    "kind", [pytest.param("relay", marks=pytest.mark.relay), pytest.param("relax", marks=pytest.mark.relax)]
)


def script(path: Path, *lines: str) -> Path:
    """An interpreter that does what the lines of a shell say, whatever it is to run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def saved(text: str, path: Path) -> str:
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["echo nonsense"], "starting: the worker answered b'nonsense'"),
        (["echo '[1]'"], "its first answer is none of a worker"),
        (["echo 'no such module: tvm' >&2", "exit 3"], "the worker ended with exit code 3 (no such module: tvm)"),
        (["""printf '{"ready": "relay", "tvm": "0.20.1", "missing": []}\\n'""", "sleep 60"],
         "it has TVM 0.20.1, expected 0.19"),
        (["""printf '{"ready": "relay", "tvm": "0.19.0", "missing": ["target.build.llvm"]}\\n'""", "sleep 60"],
         "its TVM was built without target.build.llvm"),
        ([READY, "read line", "echo 'Check failed' >&2", "kill -SEGV $$"],
         "'versions': the worker was killed by SIGSEGV (Check failed)"),
        ([READY, "exec sleep 60"], "'versions': the worker took more than 0.5 seconds"),
    ],
)  # fmt: skip
def test_misbehaviour_is_one_clear_error(tmp_path: Path, lines: list[str], told: str) -> None:
    worker = Worker("relay", script(tmp_path / "python", *lines))
    with pytest.raises(TargetError) as caught:
        worker.call("versions", timeout_s=0.5)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert worker.pid is None


def test_program_in_a_message_is_cut() -> None:
    text = last_part(ValueError("it does not fit: " + "%1 = add(%0); " * 500 + "contains free variables: i0"))
    assert text.startswith("it does not fit: %1")
    assert text.endswith("contains free variables: i0")
    assert len(text) < 700
    assert last_part(ValueError("one\ntwo")) == "one two"


def test_interpreter_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"cannot start .*python: No such file.*targets install relay"):
        Worker("relay", tmp_path / "python").call("versions")


def test_processes_that_the_child_started_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = script(tmp_path / "python", READY, f"sleep 60 & echo $$ $! > {pids}", "wait")
    worker = Worker("relay", python)
    with pytest.raises(TargetError, match="took more than"):
        worker.call("versions", timeout_s=0.5)
    for pid in map(int, pids.read_text().split()):
        wait_for_end(pid)


def test_too_much_memory_ends_the_child(tmp_path: Path) -> None:
    worker = Worker("relay", script(tmp_path / "python", READY, "exec sleep 60"))
    with pytest.raises(TargetError, match="'versions': the worker took more than 0 MiB of memory"):
        worker.call("versions", memory_bytes=1)
    assert worker.pid is None


def test_interruption_ends_the_child(tmp_path: Path) -> None:
    worker = Worker("relay", script(tmp_path / "python", READY, "exec sleep 60"))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.call("versions", timeout_s=20)
    timer.join()
    assert worker.pid is None


@both
def test_worker_is_reused_and_survives_a_refusal(kind: str) -> None:
    worker = Worker(kind, interpreter(kind))
    assert worker.call("versions")[0]["tvm"].startswith({"relay": "0.19.", "relax": "0.27."}[kind])
    pid = worker.pid
    with pytest.raises(TargetError, match="there is no command nonsense; there are compile_body, compile_model, "):
        worker.call("nonsense")
    with pytest.raises(TargetError, match="there is no file nowhere.so"):
        worker.call("run_library", {"library": "nowhere.so"})
    worker.call("versions")
    assert worker.pid == pid
    worker.close()
    assert pid is not None
    wait_for_end(pid)


@both
@pytest.mark.parametrize("rows", [2, None])
def test_straight_line_model_compiles_and_runs_in_a_fresh_process(kind: str, rows: int | None, tmp_path: Path) -> None:
    library = str(tmp_path / "line.so")
    arguments = {"model": saved(LINE, tmp_path / "line.onnx"), "library": library, "shapes": {"x": [rows, 3]}}
    worker = Worker(kind, interpreter(kind))
    worker.call("compile_model", arguments)
    worker.close()
    x, u = np.asarray([[0.5, -1, 2], [3, 0, 1]], np.float32), np.asarray([1, 2, -3], np.float32)
    result, arrays = worker.call("run_library", {"library": library, "repeat": 3}, {"0": x, "1": u})
    np.testing.assert_allclose(arrays["0"], np.tanh(x) * u, rtol=1e-6)
    assert len(result["seconds"]) == 3
    worker.close()


@pytest.mark.relay
def test_loop_runs_in_the_virtual_machine_of_relay(tmp_path: Path) -> None:
    library = str(tmp_path / "loop.so")
    worker = Worker("relay", interpreter("relay"))
    worker.call("compile_model", {"model": saved(LOOP, tmp_path / "loop.onnx"), "library": library})
    x = np.asarray([1, 2, 3], np.float32)
    feeds: dict[str, Any] = {"0": x, "1": np.asarray(4), "2": np.asarray(True)}
    np.testing.assert_allclose(worker.call("run_library", {"library": library}, feeds)[1]["0"], x**5)
    worker.close()


@pytest.mark.relax
def test_loop_that_relax_cannot_take_is_refused(tmp_path: Path) -> None:
    worker = Worker("relax", interpreter("relax"))
    with pytest.raises(TargetError, match="TVM Relax: a Loop whose initial condition is computed"):
        worker.call("compile_model", {"model": saved(LOOP, tmp_path / "loop.onnx"), "library": "none.so"})
    worker.close()


@both
def test_killed_worker_is_an_error_and_the_next_call_starts_another(kind: str) -> None:
    worker = Worker(kind, interpreter(kind))
    worker.call("versions")
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    worker.call("versions")
    assert worker.pid not in (None, first)
    worker.close()


@both
def test_worker_ends_with_a_parent_that_was_killed(kind: str) -> None:
    program = (
        "import sys, time\n"
        "from onnx_cfad.targets.tvm.worker import Worker\n"
        "worker = Worker(*sys.argv[1:])\n"
        "worker.call('versions')\n"
        "print(worker.pid, worker._child.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, kind, str(interpreter(kind))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert is_running(int(pid))
        parent.kill()
    wait_for_end(int(pid))
    deadline = time.monotonic() + 5
    while Path(folder).exists():
        assert time.monotonic() < deadline, "the folder for arrays is still there"
        time.sleep(0.02)
