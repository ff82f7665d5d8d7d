"""Saving a model: whole or not at all, the same bytes every time, weights in files copied and never loaded."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from onnx_cfad import weights
from onnx_cfad.collector import resting_collector
from onnx_cfad.errors import ModelError
from onnx_cfad.functions import root_message
from onnx_cfad.given import path_of
from onnx_cfad.links import followed
from onnx_cfad.message_depth import check_message_depth
from onnx_cfad.suffixes import check_suffix

MAX_FILE_BYTES = 2**31 - 2**24
"""A protobuf file cannot pass 2 GiB; a little room is left for the graph itself."""

_SMALL_BYTES = 1024
"""Tensors up to this size stay in the model's file when the large ones must leave it."""

_HASHED_BYTES = 2**20
"""Tensors over this size enter a fingerprint as a hash of their own."""


def save(model: ir.Model, path: str | os.PathLike[str], *, source: str | os.PathLike[str] | None = None) -> None:
    """Writes ``model`` to ``path``; the file appears complete or not at all, and replaces one that is there.

    External data that lies in the folder of ``path`` is referred to where it is. If it lies elsewhere, or if the model
    would pass 2 GiB, the weights are written beside the model as ``NAME.data``.

    Args:
        model: The model; it is not changed.
        path: The file to write.
        source: The file that the model was made from, which is never overwritten.

    Raises:
        ModelError: ``path`` is a directory, is ``source`` or a file that holds weights, has the name of
            arrays or JSON, or cannot be written.
    """
    target = path_of("output", path)
    check_target(target, *([] if source is None else [source]), *weights.files(model))
    check_suffix(target, "model")
    folder = target.parent
    moved = _to_move(model, folder)
    try:
        if not moved:
            with _replacing(target) as file:
                file.write(_serialize(model))
            return
        model = model.clone()
        location = weights.free_location(target.name, folder, model)
        # The model's file takes its place last: until then nothing refers to the new weights.
        with _replacing(target) as model_file, _replacing(folder / location) as weight_file:
            weights.write_tensors(_to_move(model, folder), weight_file, location, folder)
            model_file.write(_serialize(model))
            model_file.flush()
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        named = error.filename is not None and not str(error.filename).endswith(".tmp")
        raise ModelError(str(target), f"{what}: {error.filename}" if named else what) from error
    except ValueError as error:
        raise ModelError(str(target), f"cannot be written: {error}") from error


def fingerprint(model: ir.Model) -> str:
    """The SHA-256 of a model as hexadecimal digits.

    External data is not read: its location, offset and length stand for it.
    """
    large = [slot for slot in weights.slots(model) if _is_in_memory(slot.tensor) and slot.tensor.nbytes > _HASHED_BYTES]
    if large:
        model = model.clone()
        for slot in weights.slots(model):
            if _is_in_memory(slot.tensor) and slot.tensor.nbytes > _HASHED_BYTES:
                content = np.ascontiguousarray(slot.tensor.numpy()).view(np.uint8)
                slot.put(weights.stand_in(slot.tensor, hashlib.sha256(content.data).hexdigest()))
    return hashlib.sha256(_serialize(model)).hexdigest()


def write_text(path: str | os.PathLike[str], text: str, *, sources: Sequence[str | os.PathLike[str]] = ()) -> None:
    """Writes ``text`` to ``path``, whole or not at all, and never over one of the files ``sources``.

    Raises:
        ModelError: It cannot be written there.
    """
    target = Path(path)
    check_target(target, *sources)
    check_suffix(target, "JSON")
    try:
        with _replacing(target) as file:
            file.write(text.encode())
    except OSError as error:
        raise ModelError(str(target), f"cannot be written: {error.strerror}") from error


def check_target(target: Path, *sources: str | os.PathLike[str]) -> None:
    """Refuses what a result cannot be written to, or must not: a directory, a device, one of the files ``sources``.

    Raises:
        ModelError: The target is one of these, or cannot be looked up.
    """
    try:
        _check_target(target, *sources)
    except OSError as error:
        raise ModelError(str(target), f"cannot be written: {error.strerror or error}") from error


def _check_target(target: Path, *sources: str | os.PathLike[str]) -> None:
    if target.is_dir():
        raise ModelError(str(target), "the output is a directory", "Name a file.")
    if target.exists() and not target.is_file():
        raise ModelError(
            str(target), "the output is not a regular file", "Name a file; it is written beside and renamed."
        )
    if not target.parent.is_dir():
        raise ModelError(str(target), "the folder of the output does not exist", "Make it first.")
    for source in map(Path, sources):
        if target.exists() and source.exists() and target.samefile(source):
            what = "the output is the input file, or one that holds its weights"
            raise ModelError(str(target), what, "Name another file; the input is never changed.")


def _is_in_memory(tensor: ir.TensorProtocol) -> bool:
    return not isinstance(tensor, (ir.ExternalTensor, ir.StringTensor))


def _to_move(model: ir.Model, folder: Path) -> list[weights.Slot]:
    """The places whose tensors cannot stay as they are when the model is written to ``folder``."""
    inside = [slot for slot in weights.slots(model) if _is_in_memory(slot.tensor)]
    too_large = sum(slot.tensor.nbytes for slot in inside) > MAX_FILE_BYTES
    return [
        slot
        for slot in weights.slots(model)
        if (isinstance(slot.tensor, ir.ExternalTensor) and not weights.lies_in(slot.tensor, folder))
        or (too_large and _is_in_memory(slot.tensor) and slot.tensor.nbytes > _SMALL_BYTES)
    ]


@contextlib.contextmanager
def quiet_serde() -> Generator[None]:
    """onnx_ir logs what it finds odd about a model; what matters is checked here, and raised."""
    logger = logging.getLogger("onnx_ir.serde")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _serialize(model: ir.Model) -> bytes:
    return message_of(model).SerializeToString(deterministic=True)


@resting_collector()
def message_of(model: ir.Model) -> onnx.ModelProto:
    """The protobuf message of ``model``.

    Raises:
        ModelError: It holds what a message cannot, or is nested so deep that nothing could read it.
    """
    check_message_depth(model)
    try:
        with quiet_serde():
            return ir.to_proto(model)
    except ir.serde.SerdeError as error:
        raise ModelError("model", f"cannot be written: {root_message(error)}", "Export it again.") from error


@contextlib.contextmanager
def _replacing(target: Path) -> Generator[BinaryIO]:
    """A new file in the folder of ``target`` that takes its place when all went well, and else is removed."""
    target = followed(target)  # a link stays, and what it leads to is replaced
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
