"""Resident memory of this process: how much there is, and the peak since a moment one chooses (Linux)."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident() -> int:
    """Bytes resident now."""
    return _status("VmRSS")


def peak() -> int:
    """The most bytes that were resident since ``reset_peak`` (``ru_maxrss`` would include the parent process)."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Starts a new peak at what is resident now."""
    _CLEAR_REFS.write_text(_RESET_PEAK)


def give_back() -> None:
    """Returns freed heap to the system, so that what was freed before a run is not counted as free for that run."""
    ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", _STATUS.read_text())
    if found is None:
        raise OSError(f"{_STATUS} does not tell {key}")
    return int(found.group(1)) << 10
