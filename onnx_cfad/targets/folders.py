"""Where targets keep what they install and what they have compiled: the user's data and cache folders."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = "onnx-cfad"


def data_folder() -> Path:
    """``$XDG_DATA_HOME/onnx-cfad``, by default ``~/.local/share/onnx-cfad``; it need not exist."""
    return _folder("XDG_DATA_HOME", ".local/share")


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/onnx-cfad``, by default ``~/.cache/onnx-cfad``; it need not exist."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    """As the XDG Base Directory Specification says: a path that is not absolute counts as none."""
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / default) / _NAME
