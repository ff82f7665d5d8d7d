"""Arrays in .npz files: read without pickle, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnx_cfad.errors import ModelError
from onnx_cfad.links import followed
from onnx_cfad.suffixes import check_suffix

Array = np.ndarray[Any, Any]


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file by name.

    Raises:
        ModelError: The file is not there, is not an .npz file, is damaged or holds pickled objects.
    """
    source = Path(path)
    where = str(source)
    if not source.is_file():
        raise ModelError(where, "is a directory" if source.is_dir() else "there is no such file", "Name an .npz file.")
    try:
        with source.open("rb") as file:  # numpy leaves a file open that it cannot read
            archive: object = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ModelError(where, "holds one array without a name", "Save the inputs by name with numpy.savez.")
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise ModelError(where, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = (
            "it holds Python objects" if "pickle" in str(error).lower() and zipfile.is_zipfile(source) else "damaged?"
        )
        raise ModelError(
            where, f"is not a readable .npz file ({reason})", "Save plain arrays by name with numpy.savez."
        ) from error


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name; the elements of a list under ``name[0]``, ``name[1]``, ...

    Raises:
        ModelError: The path is a directory, or cannot be written.
    """
    check_npz_target(path)
    temporary = None
    try:
        target = followed(path)
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
        with zipfile.ZipFile(temporary, "x") as archive:
            for name, array in _flat(arrays).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        temporary.replace(target)
    except OSError as error:
        raise ModelError(str(path), f"cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_npz_target(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """Refuses a place that arrays cannot be written to, and the files that are read, the ``sources``.

    Raises:
        ModelError: The path is a directory or one of the sources, lies in a folder that does not exist, or is named as
            a model or JSON is.
    """
    target = Path(path)
    if target.is_dir():
        raise ModelError(str(target), "the output is a directory", "Name a file.")
    if target.exists() and not target.is_file():
        raise ModelError(str(target), "the output is not a regular file", "Name a file.")
    if not target.parent.is_dir():
        raise ModelError(str(target), "the folder of the output does not exist", "Make it first.")
    if target.exists() and any(Path(source).exists() and target.samefile(source) for source in sources):
        raise ModelError(str(target), "the output is an input file", "Name another file; inputs are never changed.")
    check_suffix(target, "arrays")


def _flat(arrays: Mapping[str, Any]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in arrays.items():
        if isinstance(value, list):
            found.update((f"{name}[{index}]", _plain(element)) for index, element in enumerate(value))
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Array:
    """An array without Python objects: strings in NumPy's own type."""
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype == object else array
