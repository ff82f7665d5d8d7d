"""The manifest of an artifact: what was compiled, with what, for which inputs; how it compared with ONNX Runtime."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from onnx_cfad.errors import TargetError

NAME = "manifest.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class InputEntry:
    """An input: its name, the NumPy name of its element type, and the shape that it was compiled for."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What an artifact is.

    Attributes:
        target: The target's name.
        form: What the target has made, in a few words.
        model: The SHA-256 of the model.
        stamp: What it was compiled with.
        inputs: The model's inputs; it takes exactly these shapes.
        outputs: The names of its outputs.
        program: What the target needs to load it.
        errors: The largest relative error of each output against ONNX Runtime; None where it was not checked.
        files: The SHA-256 of every other file, by its path in the folder.
        notes: Reasons for choices.
        seconds: What compiling took.
    """

    target: str
    form: str
    model: str
    stamp: dict[str, Any]
    inputs: tuple[InputEntry, ...]
    outputs: tuple[str, ...]
    program: dict[str, Any]
    errors: dict[str, float] | None
    files: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    def to_json(self) -> str:
        """The manifest as text."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the artifact in a folder, whose files are checked against it.

    Raises:
        TargetError: The folder holds no artifact, or one that is not as it was written.
    """
    path = folder / NAME
    if not path.is_file():
        raise TargetError(str(folder), f"it holds no {NAME}", "Name a folder that `onnx-cfad compile` has written.")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain.pop("format") != _FORMAT:
            raise TargetError(str(path), "it was written by another release", "Compile the model again.")
        inputs = tuple(InputEntry(i["name"], i["dtype"], tuple(i["shape"])) for i in plain.pop("inputs"))
        outputs, notes = tuple(plain.pop("outputs")), tuple(plain.pop("notes"))
        manifest = Manifest(inputs=inputs, outputs=outputs, notes=notes, **plain)
        changed = [name for name, digest in manifest.files.items() if digest != digest_of(folder / name)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise TargetError(str(path), f"it cannot be read: {error}", "Compile the model again.") from error
    if changed:
        raise TargetError(str(folder), f"'{changed[0]}' is not the file that was compiled", "Compile the model again.")
    return manifest


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder and below, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in files}


def digest_of(path: Path) -> str:
    """The SHA-256 of a file as hexadecimal digits; what is missing has that of nothing."""
    digest = hashlib.sha256()
    if path.exists():
        with path.open("rb") as file:
            while part := file.read(2**20):
                digest.update(part)
    return digest.hexdigest()
