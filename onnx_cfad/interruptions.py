"""What ends a command from outside: signals, an interruption, a reader that goes away. Nothing half written stays."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes a moment, in which Ctrl-C may come
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType, TracebackType

_BY_SIGNAL = 128  # added to the number of the signal: the exit code that shells give

NOBODY_READS = _BY_SIGNAL + 13
"""The exit code of a command whose output nobody reads any more (SIGPIPE)."""


INTERRUPTED = _BY_SIGNAL + signal.SIGINT
"""The exit code of a command that the user interrupted."""

_PATIENCE = 0.02  # seconds


def leave_on_signals() -> None:
    """Makes SIGTERM and SIGHUP leave as an exception does, so that temporary files are removed.

    They and Ctrl-C wait while a module is imported: in the middle of one that is written in C++, an exception becomes
    an ImportError or ends the process with a dump of its stack. Where one is ignored, as in a ``__del__``, the signal
    comes again.
    """
    sys.unraisablehook = _ignored
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        _send_again(number)
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(_BY_SIGNAL + number)


def _ignored(ignored: UnraisableHookArgs) -> None:
    error = ignored.exc_value
    if isinstance(error, KeyboardInterrupt):
        _send_again(signal.SIGINT)
    elif isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > _BY_SIGNAL:
        _send_again(error.code - _BY_SIGNAL)
    else:
        sys.__unraisablehook__(ignored)


def _send_again(number: int) -> None:
    import threading  # noqa: PLC0415 - which the command line has imported by now

    timer = threading.Timer(_PATIENCE, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is imported somewhere up the stack."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def say_interrupted() -> int:
    """Says in one line that the user interrupted the command, and gives the exit code of that."""
    sys.stderr.write("error: interrupted\n")
    return INTERRUPTED


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
