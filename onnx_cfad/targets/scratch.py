"""A folder that is being made beside the place that it will have; one whose process was killed is found and removed.

The process that writes holds a lock on the folder, which the system releases however the process ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Generator
from pathlib import Path

_YOUNG_SECONDS = 2.0
"""Until here a folder may have been made, and not yet been locked."""


@contextlib.contextmanager
def scratch_folder(final: Path) -> Generator[Path, None, None]:
    """An empty hidden folder beside ``final``, to be renamed to it; it goes with the context where it still is there.

    What killed processes have left for the same place is removed.

    Raises:
        OSError: It cannot be made.
    """
    remove_abandoned(final.parent, re.escape(final.name))
    folder = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    folder.mkdir()
    lock = _locked(folder)
    try:
        yield folder
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path, name: str = r".+") -> None:
    """Removes the folders in ``parent`` that killed processes have left.

    Args:
        parent: Where they lie.
        name: A pattern of the names that they were to have.
    """
    pattern = re.compile(rf"\.{name}\.[0-9a-f]{{16}}")
    with contextlib.suppress(OSError):
        for path in [path for path in parent.iterdir() if pattern.fullmatch(path.name)]:
            if is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Whether no process holds ``folder``."""
    try:
        if time.time() - folder.stat().st_ctime < _YOUNG_SECONDS:
            return False
    except OSError:  # it has been renamed meanwhile
        return False
    lock = _locked(folder)
    if lock is None:
        return False
    os.close(lock)
    return True


def _locked(folder: Path) -> int | None:
    """A lock on a folder; None where another process has it, or the system has no such locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:
        return None
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None
    return descriptor
