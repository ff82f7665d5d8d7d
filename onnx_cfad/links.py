"""Where a path leads when its links are followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def followed(path: str | os.PathLike[str]) -> Path:
    """The path without links; the file need not be there.

    Raises:
        OSError: Its links lead in a circle, which Python tells by a RuntimeError before 3.13.
    """
    try:
        return Path(path).resolve()
    except RuntimeError as error:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
