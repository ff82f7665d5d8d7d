"""Where output goes: tables to standard output, progress to a terminal on standard error."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Generator

from rich.console import Console, RenderableType
from rich.progress import Progress

_WIDE = 120  # columns
_PIPE_WIDTH = 10_000  # columns: a program that reads lines wants each whole


def show(renderable: RenderableType) -> None:
    """Prints to standard output; where that is no terminal, without colours, in lines of any length, none padded."""
    if sys.stdout.isatty():
        _Console(markup=False, highlight=False, emoji=False, soft_wrap=False).print(renderable)
        return
    text = io.StringIO()
    _Console(file=text, width=_PIPE_WIDTH, markup=False, highlight=False, emoji=False).print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def is_narrow() -> bool:
    """Whether standard output is a terminal too narrow for a wide table."""
    return sys.stdout.isatty() and Console().width < _WIDE


class _Console(Console):
    """A console that leaves it to the caller what happens when nobody reads any more, and draws what can be written."""

    @property
    def encoding(self) -> str:
        """That of standard output, also for what is written to it later: trees have lines in UTF-8, else dashes."""
        return (sys.stdout.encoding or "utf-8").lower()

    def on_broken_pipe(self) -> None:
        """Called where writing has raised BrokenPipeError, which goes on."""
        raise  # noqa: PLE0704 - the caller is handling the exception


@contextlib.contextmanager
def working(text: str, *, quiet: bool) -> Generator[Callable[[str], None]]:
    """Shows on a terminal that work goes on; gives a function that says with what. Silent in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with console.status(text) as status:
        yield status.update


@contextlib.contextmanager
def counting(text: str, *, quiet: bool) -> Generator[Callable[[int, int], None]]:
    """Shows a bar on a terminal; gives a function that says how many are done, of how many. Silent in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with Progress(console=Console(stderr=True, markup=False, highlight=False, emoji=False), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
