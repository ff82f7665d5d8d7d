"""The commands that a worker process answers: a table that the modules of the child fill with ``@command``.

This module, and all that is imported beside it in a child, needs the standard library, numpy, onnx and tvm alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arguments = Mapping[str, Any]
"""The arguments of a command, as JSON has them."""
Arrays = Mapping[str, Array]
Result = tuple[dict[str, Any], dict[str, Array]]
"""What a command gives back: plain data that JSON can hold, and arrays by name."""
Command = Callable[[Arguments, Arrays], Result]

COMMANDS: dict[str, Command] = {}


class Refused(Exception):
    """TVM, or the code around it, cannot do what was asked, for a reason that is said in the text.

    Args:
        text: The reason.
        body: The body of a host program that it is about.
    """

    def __init__(self, text: str, body: str = "") -> None:
        super().__init__(f"body '{body}': {text}" if body else text)
        self.body = body


def last_part(error: Exception) -> str:
    """What an exception says, in one line; of TVM's, which hold a trace of C++, what stands after it.

    Some print a whole program: of what is long, its beginning and its end are told.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = next((index for index in reversed(range(len(lines))) if lines[index].startswith(_TRACE)), -1)
    text = " ".join(lines[last + 1 :] or lines)
    return text if len(text) <= _MOST_TOLD else f"{text[:_OF_BEGINNING]} ... {text[_OF_BEGINNING - _MOST_TOLD :]}"


_TRACE = ("File ", "at ", "Stack trace", *(f"{digit}: " for digit in range(10)))
_MOST_TOLD, _OF_BEGINNING = 600, 200  # characters


def command(run: Command) -> Command:
    """Enters a function into the table under its own name; a second one of that name is an error."""
    name = getattr(run, "__name__", "")
    if name in COMMANDS:
        raise ValueError(f"there are two commands {name}")
    COMMANDS[name] = run
    return run


def answer(name: str, arguments: Arguments, arrays: Arrays) -> Result:
    """Runs a command of the table.

    Raises:
        Refused: There is no such command, or it refuses.
    """
    if name not in COMMANDS:
        raise Refused(f"there is no command {name}; there are {', '.join(sorted(COMMANDS))}")
    return COMMANDS[name](arguments, arrays)
