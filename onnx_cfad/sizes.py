"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from onnx_cfad.errors import PlanError
from onnx_cfad.given import shown, whole
from onnx_cfad.options import MOST_BYTES

_PREFIXES = "kmgt"
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES, start=1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)},
}


def parse_bytes(text: str) -> int:
    """The number of bytes that ``text`` means: ``512MiB``, ``2 GB``, ``1.5GiB``, ``4096``.

    Raises:
        PlanError: It is no such number.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    found = Decimal(match[1]) * unit if match is not None and unit is not None else None
    if found is None or found > MOST_BYTES:
        raise PlanError(f"memory {shown(text)}", "expected a number of bytes", "For example 512MiB, 2GB or 4096.")
    return int(found)


def number_of_bytes(memory: str | int) -> int:
    """The number of bytes that a caller gives, as text or as a number.

    Raises:
        PlanError: It is no such number.
    """
    given: object = memory  # a caller may give what the annotation does not allow
    if isinstance(given, str):
        return parse_bytes(given)
    return whole("memory", given, 0, MOST_BYTES, remedy="Give bytes, such as '512MiB', '2GB' or 4096.", error=PlanError)


def format_bytes(number: int) -> str:
    """A number of bytes with the largest unit that leaves at least one of it."""
    for power, prefix in reversed(list(enumerate("KMGT", start=1))):
        if number >= 1024**power:
            return f"{number / 1024**power:,.1f} {prefix}iB"
    return f"{number} B"
