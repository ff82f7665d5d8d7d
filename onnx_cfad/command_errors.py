"""What a command does about an error: one message on standard error, and an exit code."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from typing import NoReturn, ParamSpec

import typer

from onnx_cfad.errors import CfadError
from onnx_cfad.interruptions import INTERRUPTED, NOBODY_READS, forget_output, say_interrupted

Parameters = ParamSpec("Parameters")

BAD_INPUT = 2
DOES_NOT_HOLD = 1


def reports_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """A command whose errors are one message on standard error, and an exit code."""

    @functools.wraps(command)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            forget_output()
            raise typer.Exit(NOBODY_READS) from error
        except OSError as error:
            forget_output()
            place = error.filename or "standard output"
            _fail(f"{place}: {error.strerror or error}", error, debug=_debugging(kwargs))
        except MemoryError as error:
            text = f"there is not enough memory ({error})" if str(error) else "there is not enough memory"
            _fail(f"{text}. Give smaller inputs, or free some.", error, debug=_debugging(kwargs))
        except CfadError as error:
            _fail(str(error), error, debug=_debugging(kwargs))
        except Exception as error:  # noqa: BLE001 - the last line of defence: nobody sees a traceback unasked
            text = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(".: ")
            report = "This is a bug in onnx-cfad: please report it with the model and what --debug shows"
            _fail(f"{text}. {report} (onnx-cfad --debug COMMAND ...).", error, debug=_debugging(kwargs))

    return guarded


@contextlib.contextmanager
def reporting_output() -> Generator[None]:
    """Around the whole command line: help, versions and errors may be what cannot be written or is interrupted."""
    try:
        yield
    except SystemExit as error:
        if error.code == INTERRUPTED:  # also where typer was, which says nothing
            say_interrupted()
        raise
    except OSError as error:
        forget_output()
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: standard output: {error.strerror or error}\n")
        sys.exit(BAD_INPUT)


def _fail(text: str, error: Exception, *, debug: bool) -> NoReturn:
    if debug:
        typer.echo("".join(traceback.format_exception(error)), err=True)
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(BAD_INPUT) from error


def _debugging(arguments: Mapping[str, object]) -> bool:
    return bool(getattr(arguments.get("context"), "obj", False))
