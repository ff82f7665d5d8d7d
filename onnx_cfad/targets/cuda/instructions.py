"""How kernels decide: selects, branches and comparisons, counted in PTX and, where a disassembler is, in SASS.

A predicated If is a select when no branch of its kernel depends on its predicate. A kernel has other branches: the
guard of threads beyond the end of an array, loops, and those of the functions that it calls.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(")
_PTX = {
    "selects": re.compile(r"^\s*(?:@!?%p\d+\s+)?selp\."),
    "branches": re.compile(r"^\s*@!?%p\d+\s+bra"),
    "comparisons": re.compile(r"^\s*(?:@!?%p\d+\s+)?setp\."),
}
_SASS = {
    "selects": re.compile(r"\b(?:F?SEL|FMNMX)\b"),
    "branches": re.compile(r"@!?U?P\d+\s+BRA\b"),
    "comparisons": re.compile(r"\b(?:I|F|D|H)SETP(?:2)?\b"),
}
_FUNCTION = re.compile(r"Function : (\w+)")


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Instructions of one kernel.

    Attributes:
        selects: They take one of two values (``selp``; ``SEL``, ``FSEL``).
        branches: Jumps that a predicate decides (``@p bra``).
        comparisons: They make a predicate (``setp``).
    """

    selects: int = 0
    branches: int = 0
    comparisons: int = 0

    def __add__(self, other: Decisions) -> Decisions:
        return Decisions(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def decisions(ptx: str) -> dict[str, Decisions]:
    """The counts of each kernel in PTX, by its name."""
    return _counted(ptx, _ENTRY, _PTX)


def decisions_in_machine_code(cubin: bytes) -> dict[str, Decisions] | None:
    """The counts of each kernel in machine code, by its name; None where there is no cuobjdump."""
    tool = shutil.which("cuobjdump")
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-sass", str(path)], capture_output=True, text=True, check=False)
    return _counted(done.stdout, _FUNCTION, _SASS) if done.returncode == 0 else None


def _counted(text: str, begins: re.Pattern[str], patterns: dict[str, re.Pattern[str]]) -> dict[str, Decisions]:
    found: dict[str, Decisions] = {}
    name = None
    for line in text.splitlines():
        start = begins.search(line)
        if start is not None:
            name = start.group(1)
            found[name] = Decisions()
        elif name is not None:
            found[name] += Decisions(**{key: int(bool(p.search(line))) for key, p in patterns.items()})
    return found
