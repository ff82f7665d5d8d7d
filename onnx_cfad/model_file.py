"""Whether a path leads to something that can be the file of a model. Light: it is asked before anything is imported."""

from __future__ import annotations

import os
from pathlib import Path

from onnx_cfad.errors import ModelError

_MAX_BYTES = 2**31
"""What a protobuf file can have."""


def check_model_file(source: str | os.PathLike[str]) -> None:
    """Refuses a path at which there is no file, or one that cannot hold a model.

    Raises:
        ModelError: It is a folder, a device, absent, empty, too large, or cannot be looked up.
    """
    path, where = Path(source), str(source)
    try:
        _check(path, where)
    except OSError as error:
        raise ModelError(where, f"cannot be read: {error.strerror or error}") from error


def _check(path: Path, where: str) -> None:
    if path.is_dir() and (path / "manifest.json").is_file():
        remedy = "`run` takes it; elsewhere name the .onnx file that it was made from."
        raise ModelError(where, "is what `compile` wrote, not an ONNX model", remedy)
    if path.is_dir():
        raise ModelError(where, "is a directory, not an ONNX model", "Name the .onnx file in it.")
    if where == "-" and not path.exists():
        raise ModelError(where, "standard input is not read", "Name the .onnx file.")
    if not path.is_file():
        raise ModelError(where, "there is no such file" if not path.exists() else "is not a regular file")
    size = path.stat().st_size
    if size == 0:
        raise ModelError(where, "the file is empty", "Export or download it again.")
    if size > _MAX_BYTES:
        raise ModelError(where, f"{size:,} bytes are more than a protobuf file can have", "Use external data.")
