"""What ends a command from outside: signals, an interruption, a reader that goes away. Nothing half written stays."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes a moment, in which Ctrl-C may come
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import NoReturn

_BY_SIGNAL = 128  # added to the number of the signal: the exit code that shells give

NOBODY_READS = _BY_SIGNAL + 13
"""The exit code of a command whose output nobody reads any more (SIGPIPE)."""


def leave_on_signals() -> None:
    """Makes SIGTERM and SIGHUP leave as an exception does, so that temporary files are removed."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - what a handler is called with
    raise SystemExit(_BY_SIGNAL + number)


def say_interrupted() -> int:
    """Says in one line that the user interrupted the command, and gives the exit code of that."""
    sys.stderr.write("error: interrupted\n")
    return _BY_SIGNAL + signal.SIGINT


def forget_output() -> None:
    """Lets what was not yet written go: Python would try again at its end, and complain."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # there is no output
        return


def _is_command() -> bool:
    """Whether Python was started to run the command line, as ``onnx-cfad`` or ``python -m onnx_cfad``."""
    started = sys.orig_argv[1:]
    module = ["-m", "onnx_cfad"] in (started[index : index + 2] for index in range(len(started)))
    names = (argument.replace("\\", "/").rpartition("/")[2] for argument in started[:1])
    return module or any(name.partition(".")[0] == "onnx-cfad" for name in names)


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        say_interrupted()
    else:
        sys.__excepthook__(kind, error, traceback)


if _is_command():
    sys.excepthook = _hook
