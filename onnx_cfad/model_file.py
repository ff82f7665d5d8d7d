"""Whether a path leads to something that can be the file of a model. Light: it is asked before anything is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from onnx_cfad.errors import ModelError
from onnx_cfad.nearest import did_you_mean

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
        if path.exists():
            raise ModelError(where, "is not a regular file", "Name the .onnx file.")
        if path.is_symlink():
            raise ModelError(where, "is a link that leads to no file", "Check where it leads.")
        raise ModelError(
            where, "there is no such file", did_you_mean(path.name, _models_beside(path), "Check the path.")
        )
    size = path.stat().st_size
    if size == 0:
        raise ModelError(where, "the file is empty", "Export or download it again.")
    if size > _MAX_BYTES:
        raise ModelError(where, f"{size:,} bytes are more than a protobuf file can have", "Use external data.")


def _models_beside(path: Path) -> list[str]:
    """The models in the folder that ``path`` leads to; none where there is no such folder."""
    return sorted(entry.name for entry in path.parent.glob("*.onnx")) if path.parent.is_dir() else []


def not_a_model(path: Path) -> ModelError:
    """The error for a file that is no ONNX model: what it is instead, where its first bytes say so."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for is_this, what, remedy in _OTHERS:
        if is_this(head):
            return ModelError(str(path), f"is not an ONNX model but {what}", remedy)
    what = "is not an ONNX model, or is cut short, or is nested too deep"
    return ModelError(str(path), what, "Export or download it again.")


_HEAD_BYTES = 512


def _is_text(head: bytes) -> bool:
    try:
        text = head[: _HEAD_BYTES - 4].decode("utf-8", errors="strict" if len(head) < _HEAD_BYTES else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\r\t" for character in text)


_OTHERS: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (lambda head: head.startswith(b"version https://git-lfs"), "a pointer of Git LFS to one", "Run: git lfs pull"),
    (lambda head: head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")), "a web page", "Download it again."),
    (lambda head: head.startswith((b"PK\x03\x04", b"\x1f\x8b")), "an archive", "Unpack it, or export a model to ONNX."),
    (lambda head: head[4:8] == b"ORTM", "in ONNX Runtime's own format", "Name the .onnx file that it was made from."),
    (lambda head: head[:1] == b"\x80", "a pickle of Python", "Export the model to ONNX."),
    (_is_text, "a text file", "Save a model with onnx.save; one in ONNX's text format is read by onnx.parser."),
)
"""What is taken for a model at times: how it starts, what it is, what to do."""
