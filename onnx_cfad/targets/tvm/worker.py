"""A process with TVM, seen from its parent: calls have limits of time and memory; whatever happens is an error."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.tvm import array_files
from onnx_cfad.targets.tvm.builds import BUILDS

Array = np.ndarray[Any, Any]

_CHILD = Path(__file__).with_name("child.py")
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.05  # between two looks at the memory of a child that computes
_MOST_OF_LINE = 64 * 2**20  # bytes of an answer without its arrays
_LAST_WORDS = 4096  # bytes of the log in which the reason of an end is looked for
_SAID_ELSEWHERE = "check diagnostic render"  # an exception of TVM that has printed what it is about
_TOLD = 300  # characters of it in a message


class BodyError(TargetError):
    """A body of a host program is refused; ``body`` is its name."""

    def __init__(self, where: str, what: str, body: str) -> None:
        super().__init__(where, what)
        self.body = body


class Worker:
    """A child process with an interpreter that has TVM; started by the first call, and again after it has ended.

    A call that takes too long or too much memory, and an interruption, end the child with all that it started. It also
    ends with its parent, however that ends. Calls of several threads wait for one another.

    Args:
        kind: ``relay`` or ``relax``.
        python: The interpreter, whose environment has that build of TVM.
        threads: Threads that a compiled kernel may use.
    """

    def __init__(self, kind: str, python: str | os.PathLike[str], *, threads: int = 1) -> None:
        self.kind = kind
        self.python = os.fspath(python)
        self._threads = threads
        self._child: _Child | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The child's process id; None when none runs."""
        return None if self._child is None else self._child.process.pid

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Array] | None = None,
        *,
        timeout_s: float = 600.0,
        memory_bytes: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Runs a command in the child; what it gives back, with the child's ``peak_bytes`` so far, and its arrays.

        Args:
            name: A command of the child's table.
            arguments: Its arguments, plain data.
            arrays: Arrays by name.
            timeout_s: Seconds that it may take.
            memory_bytes: Memory that the child may hold; default: half of the machine's.

        Raises:
            TargetError: The child cannot be started, refuses, fails, ends, or exceeds a limit; the text says which.
        """
        limits = _Limits(time.monotonic() + timeout_s, timeout_s, memory_bytes or _half_of_memory())
        with self._lock:
            child = self._started()
            try:
                entries = array_files.put(arrays or {}, child.folder, "request")
                child.say({"command": name, "arguments": dict(arguments or {}), "arrays": entries})
                reply = child.hear(limits, f"'{name}'")
                if "result" in reply:
                    results = array_files.take(reply["arrays"], child.folder)
                    return {**reply["result"], "peak_bytes": reply["peak_bytes"]}, results
            except BaseException:
                self._end()
                raise
        if reply.get("body"):
            raise BodyError(self._where, reply["refused"], reply["body"])
        if "refused" in reply:
            raise TargetError(self._where, reply["refused"])
        words = f" ({child.last_words()})" if _SAID_ELSEWHERE in reply["failed"] else ""
        raise TargetError(self._where, f"'{name}' failed: {reply['type']}: {reply['failed']}{words}")

    def close(self) -> None:
        """Ends the child, if one runs; the next call starts another."""
        with self._lock:
            self._end()

    @property
    def _where(self) -> str:
        return BUILDS[self.kind].title

    def _check(self, ready: Mapping[str, Any]) -> None:
        """Refuses a child whose first answer is ``ready`` where it is of no use."""
        if ready.get("ready") != self.kind:
            fault = "its first answer is none of a worker"
        else:
            fault = BUILDS[self.kind].fault(str(ready["tvm"]), tuple(ready["missing"]))
        if fault:
            raise TargetError(self._where, f"{self.python}: {fault}", _remedy(self.kind))

    def _started(self) -> _Child:
        if self._child is not None and self._child.process.poll() is not None:
            self._end()
        if self._child is None:
            self._child = _Child(self.kind, self.python, self._threads, self._where)
            try:
                deadline = time.monotonic() + _START_SECONDS
                ready = self._child.hear(_Limits(deadline, _START_SECONDS, _half_of_memory()), "starting")
                self._check(ready)
            except BaseException:
                self._end()
                raise
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


class _Limits:
    """When a call must be done, and the memory it may take."""

    def __init__(self, deadline: float, seconds: float, memory_bytes: int) -> None:
        self.deadline, self.seconds, self.memory_bytes = deadline, seconds, memory_bytes


class _Child:
    """A running child: its pipes, its log, and the folder for arrays."""

    def __init__(self, kind: str, python: str, threads: int, where: str) -> None:
        self._where = where
        self.folder = Path(tempfile.mkdtemp(prefix="onnx-cfad-"))
        self._log = (self.folder / "log").open("ab")
        environment = {**os.environ, "TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        words = [python, "-I", str(_CHILD), kind, str(self.folder)]
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._remove()
            raise TargetError(where, f"cannot start {python}: {error.strerror or error}", _remedy(kind)) from error
        self._kind = kind
        self._heard = b""

    def say(self, request: Mapping[str, Any]) -> None:
        """Sends one request."""
        if self._log.tell() > 2**20:
            self._log.truncate(0)
        try:
            _pipe(self.process.stdin).write(json.dumps(request).encode() + b"\n")
            _pipe(self.process.stdin).flush()
        except OSError as error:
            raise self.ended(_how(self.process), "a request") from error

    def hear(self, limits: _Limits, doing: str) -> dict[str, Any]:
        """The next answer.

        Raises:
            TargetError: The child has ended, said something else, or exceeds a limit.
        """
        answers = _pipe(self.process.stdout).fileno()
        while b"\n" not in self._heard:
            left = limits.deadline - time.monotonic()
            if left <= 0:
                raise self.ended(f"took more than {limits.seconds:g} seconds", doing)
            readable, _, _ = select.select([answers], [], [], min(left, _LOOK_SECONDS))
            if readable:
                part = os.read(answers, 2**16)
                if not part:
                    raise self.ended(_how(self.process), doing)
                self._heard += part
                if len(self._heard) > _MOST_OF_LINE:
                    raise self.ended("printed without an end", doing)
            elif _resident(self.process.pid) > limits.memory_bytes:
                raise self.ended(f"took more than {limits.memory_bytes / 2**20:,.0f} MiB of memory", doing)
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError as error:
            raise self.ended(f"answered {line[:60]!r}", doing) from error
        return reply if isinstance(reply, dict) else {}

    def ended(self, how: str, doing: str) -> TargetError:
        """The error of a child that can be used no more, with its last words."""
        words = self.last_words()
        remedy = "" if doing != "starting" else _remedy(self._kind)
        return TargetError(self._where, f"{doing}: the worker {how}" + (f" ({words})" if words else ""), remedy)

    def kill(self) -> None:
        """Ends the child and its process group, and removes its folder."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()
        self.process.wait()
        self._remove()

    def _remove(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """The last line of the log that says something."""
        self._log.flush()
        with contextlib.suppress(OSError):
            text = (self.folder / "log").read_bytes()[-_LAST_WORDS:].decode(errors="replace")
            lines = [line.strip() for line in text.splitlines() if any(c.isalpha() for c in line)]
            return lines[-1][:_TOLD] if lines else ""
        return ""


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _how(process: subprocess.Popen[bytes]) -> str:
    """How a process that closed its pipe has ended."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _resident(pid: int) -> int:
    """The memory that a process holds, in bytes; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _remedy(kind: str) -> str:
    variable = f"ONNX_CFAD_{kind.upper()}_PYTHON"
    if os.environ.get(variable):
        return f"{variable} names it: unset it and run: onnx-cfad targets install {kind}"
    return f"See `onnx-cfad targets check`, or install it anew: onnx-cfad targets install {kind}"


_workers: dict[tuple[int, str, str, int], Worker] = {}


def shared_worker(kind: str, python: str | os.PathLike[str], *, threads: int = 1) -> Worker:
    """The one worker of that kind, interpreter and number of threads in this process; it ends with the process."""
    key = (os.getpid(), kind, os.fspath(python), threads)
    if key not in _workers:
        _workers[key] = Worker(kind, python, threads=threads)
        atexit.register(_workers[key].close)
    return _workers[key]
