"""Arrays in files of a folder that parent and child share: the bytes in a file each, type and shape beside its name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_number = itertools.count()


def put(arrays: Mapping[str, Array], folder: Path, prefix: str) -> dict[str, dict[str, Any]]:
    """Writes arrays to new files of ``folder``; gives what ``take`` needs to read them.

    Raises:
        TypeError: An array holds strings or objects.
    """
    entries: dict[str, dict[str, Any]] = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind in "OSUM":
            raise TypeError(f"'{name}' holds {array.dtype.name}, expected numbers")
        file = f"{prefix}{next(_number)}"
        (folder / file).write_bytes(np.ascontiguousarray(array).tobytes())
        entries[name] = {"file": file, "dtype": array.dtype.name, "shape": list(array.shape)}
    return entries


def take(entries: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, Array]:
    """The arrays that ``put`` wrote, by name; their files are removed."""
    arrays: dict[str, Array] = {}
    for name, entry in entries.items():
        path = folder / Path(entry["file"]).name
        arrays[name] = np.fromfile(path, _dtype(entry["dtype"])).reshape(entry["shape"])
        path.unlink()
    return arrays


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: PLC0415 - onnx needs it too

    return np.dtype(getattr(ml_dtypes, name, name))
