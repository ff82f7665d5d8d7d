"""What callers give for an option, in the one form that the package works with, or refused by the option's name.

An annotation keeps nobody in Python from giving something else, and numbers of NumPy are of types of their own. Each
function takes the name of the option, which the message starts with, and what was given.
"""

from __future__ import annotations

import math
import numbers
import os
import reprlib
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import cast

from onnx_cfad.errors import CfadError, ModelError
from onnx_cfad.nearest import did_you_mean

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_DIGITS = 100


def shown(given: object) -> str:
    """``given`` as Python writes it, on one short line."""
    if isinstance(given, int) and given.bit_length() > 3.33 * _DIGITS:  # Python refuses to write very long ones
        return f"of more than {_DIGITS} digits"
    return " ".join(_SHORT.repr(given).split())


def names_of(what: str, given: object) -> tuple[str, ...]:
    """The names that a caller gives, or the one. Those of a set, which has no order, come sorted.

    Raises:
        ModelError: They are no names.
    """
    entries = listed(what, given)
    wrong = [entry for entry in entries if not isinstance(entry, str)]
    if wrong:
        raise ModelError(what, f"expected names, found {shown(wrong[0])}", "Give each as a str.")
    return tuple(map(str, entries))


def name_of(what: str, given: object) -> str:
    """The one name that a caller gives.

    Raises:
        ModelError: It is none.
    """
    return names_of(what, [given])[0]


def listed(what: str, given: object) -> list[object]:
    """The entries of what a caller gives, or the one where it is a str.

    Raises:
        ModelError: It has no entries.
    """
    if isinstance(given, str):
        return [given]
    try:
        entries = list(cast("Iterable[object]", None if isinstance(given, (bytes, bytearray)) else given))
    except TypeError:  # also of an array without axes, which has the methods of an iterable
        what_else = f"expected a name or several, found {shown(given)}"
        raise ModelError(what, what_else, "Give each as a str.") from None
    return sorted(entries, key=str) if isinstance(given, AbstractSet) else entries


def whole(
    what: str,
    given: object,
    least: int,
    most: int | None = None,
    *,
    remedy: str = "",
    error: type[CfadError] = ModelError,
) -> int:
    """A whole number from ``least`` up, to ``most`` where there is one. NumPy's are as good as Python's.

    Raises:
        CfadError: It is none, as ``error``.
    """
    if isinstance(given, numbers.Integral) and not _is_flag(given):
        found = int(given)
        if least <= found and (most is None or found <= most):
            return found
    reach = f"from {least} up" if most is None else f"from {least} to {most:,}"
    raise error(f"{what} {shown(given)}", f"expected a whole number {reach}", remedy)


def number(
    what: str, given: object, *, below: float = math.inf, remedy: str = "", error: type[CfadError] = ModelError
) -> float:
    """A number above 0 and below ``below``, which are neither.

    Raises:
        CfadError: It is none, as ``error``.
    """
    if isinstance(given, numbers.Real) and not _is_flag(given):
        try:
            found = float(given)
        except OverflowError:
            found = math.inf
        if 0 < found < below:
            return found
    reach = "finite number above 0" if below == math.inf else f"number between 0 and {below:g}"
    raise error(f"{what} {shown(given)}", f"expected a {reach}", remedy)


def flag(what: str, given: object) -> bool:
    """True or False, and nothing that merely counts as such: the text "false" would be true.

    Raises:
        ModelError: It is neither.
    """
    if _is_flag(given):
        return bool(given)
    raise ModelError(f"{what} {shown(given)}", "expected True or False")


def _is_flag(given: object) -> bool:
    return type(given).__name__ in ("bool", "bool_")  # of Python or NumPy, which is not imported for this


def one_of(what: str, given: object, known: Sequence[str], *, error: type[CfadError] = ModelError) -> str:
    """One of the words ``known``; where the first of these is empty, that is for none.

    Raises:
        CfadError: It is none, as ``error``.
    """
    if isinstance(given, str) and given in known:
        return str(given)
    words = [word for word in known if word]
    remedy = did_you_mean(given, words, "") if isinstance(given, str) else ""
    raise error(f"{what} {shown(given)}", f"expected one of {', '.join(words)}", remedy)


def path_of(what: str, given: object) -> Path:
    """The path that a caller gives.

    Raises:
        ModelError: It is none.
    """
    text = os.fspath(cast("os.PathLike[str]", given)) if isinstance(given, os.PathLike) else given
    if isinstance(text, str) and "\0" not in text:
        return Path(text)
    raise ModelError(what, f"expected the path of a file, found {shown(given)}", "Give a str or a Path.")


def called(what: str, given: Callable[..., object] | None) -> None:
    """Refuses what is neither None nor a function.

    Raises:
        ModelError: It is neither.
    """
    if given is not None and not callable(given):
        raise ModelError(f"{what} {shown(given)}", "expected a function", "Leave it out for none.")
