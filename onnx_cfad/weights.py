"""Tensors that a model holds outside its file: where they lie, that they may lie there, and moving them."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.links import followed

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place in a model that holds a tensor: an initializer, or an attribute of a node.

    Attributes:
        tensor: What it holds.
        put: Puts another tensor in its place.
    """

    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]


def slots(model: ir.Model) -> Iterator[Slot]:
    """Every place of a tensor in a model, in the order of the nodes, functions last."""
    for owner in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in graphs_of(owner):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield Slot(value.const_value, _initializer_setter(value))
            for node in graph:
                yield from _attribute_slots(node)


def external_slots(model: ir.Model) -> Iterator[tuple[Slot, ir.ExternalTensor]]:
    """The places whose tensor lies outside the model's file."""
    for slot in slots(model):
        if isinstance(slot.tensor, ir.ExternalTensor):
            yield slot, slot.tensor


def _initializer_setter(value: ir.Value) -> Callable[[ir.TensorProtocol], None]:
    def put(tensor: ir.TensorProtocol) -> None:
        value.const_value = tensor

    return put


def _attribute_slots(node: ir.Node) -> Iterator[Slot]:
    for name, attribute in list(node.attributes.items()):
        if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
            # as_tensor() would ask for the element type, which an invalid tensor does not have
            yield Slot(attribute.value, _attribute_setter(node, name))


def _attribute_setter(node: ir.Node, name: str) -> Callable[[ir.TensorProtocol], None]:
    def put(tensor: ir.TensorProtocol) -> None:
        node.attributes[name] = ir.AttrTensor(name, tensor)

    return put


def adopt_folder(model: ir.Model, file: Path) -> None:
    """Says that the external tensors of a model lie in the folder of its ``file``, and checks it. Nothing is read.

    A location stays inside that folder as it is written. What it leads to, links followed, lies in that folder too, or
    in the one that the model's file itself leads to: caches of downloads keep both as links into one folder of blobs.

    Raises:
        ModelError: A location leads elsewhere, or the file is not there or too short.
    """
    folder = file.parent
    homes = (followed(folder), followed(file).parent)
    found: dict[str, tuple[Path, int]] = {}
    for slot, tensor in list(external_slots(model)):
        tensor.base_dir = str(folder)
        location = str(tensor.location)
        if location not in found:
            found[location] = _look_up(folder, homes, tensor)
        path, size = found[location]
        _check_extent(tensor, size)
        if not path.is_relative_to(homes[0]):  # onnx_ir follows no link out of the folder
            slot.put(_reference(tensor, path.name, tensor.offset, tensor.length, path.parent))


def _look_up(folder: Path, homes: Sequence[Path], tensor: ir.ExternalTensor) -> tuple[Path, int]:
    """A tensor's file, which must lie in one of ``homes``, and its size in bytes; links followed."""
    where = f"tensor {tensor.name!r}"
    location = str(tensor.location)
    path = folder / location
    try:
        resolved = followed(path)
        written_outside = not location or Path(location).is_absolute() or os.path.normpath(location).startswith("..")
        if written_outside or not any(resolved.is_relative_to(home) for home in homes):
            raise ModelError(
                where,
                f"its external data '{location}' lies outside the folder of the model",
                "External data must be in the folder of the model, or in a folder inside it.",
            )
        if not path.is_file():
            raise ModelError(where, f"its external data file '{location}' is missing", "Put it beside the model.")
        return resolved, path.stat().st_size
    except (OSError, ValueError) as error:  # too long, or with a NUL
        reason = getattr(error, "strerror", None) or error
        what = f"its external data {location[:80]!r} cannot be looked up: {reason}"
        raise ModelError(where, what, "Put the file beside the model.") from error


def _check_extent(tensor: ir.ExternalTensor, size: int) -> None:
    if tensor.dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"tensor {tensor.name!r}", "it has no element type", "Export the model again.")
    offset = tensor.offset or 0
    length = tensor.nbytes if tensor.length is None else tensor.length
    if any(not isinstance(d, int) or d < 0 for d in tensor.shape):
        what = f"its shape {list(tensor.shape)} is none that a tensor can have"
        raise ModelError(f"tensor {tensor.name!r}", what, "Export the model again.")
    if length != tensor.nbytes:
        raise ModelError(
            f"tensor {tensor.name!r}",
            f"it has {length} bytes of external data, its shape needs {tensor.nbytes}",
            "Export the model again.",
        )
    if offset < 0 or offset + length > size:
        raise ModelError(
            f"tensor {tensor.name!r}",
            f"bytes {offset} to {offset + length} of '{tensor.location}' are asked for, which has {size}",
            "The file is cut short, or belongs to another model.",
        )


def files(model: ir.Model) -> list[Path]:
    """The files that hold external data of ``model``, each once."""
    return list(dict.fromkeys(Path(tensor.path) for _, tensor in external_slots(model)))


def lies_in(tensor: ir.TensorProtocol, folder: Path) -> bool:
    """Whether a tensor is external data in ``folder``."""
    if not isinstance(tensor, ir.ExternalTensor):
        return False
    return os.path.realpath(tensor.base_dir or ".") == os.path.realpath(folder)


def write_tensors(moved: Iterable[Slot], file: BinaryIO, location: str, folder: Path) -> None:
    """Writes tensors into ``file`` one after the other and puts references to it in their place.

    Tensors in files are copied in pieces; a region that several tensors share is written once.

    Args:
        moved: The places whose tensors move.
        file: An empty file.
        location: What the file will be called, in ``folder``.
        folder: Where the model will be.
    """
    written: dict[object, tuple[int, int]] = {}
    for slot in moved:
        tensor = slot.tensor
        key = (tensor.path, tensor.offset, tensor.length) if isinstance(tensor, ir.ExternalTensor) else id(tensor)
        if key not in written:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            start = file.tell()
            _copy(tensor, file)
            written[key] = (start, file.tell() - start)
        offset, length = written[key]
        slot.put(_reference(tensor, location, offset, length, folder))


def _copy(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    if isinstance(tensor, (ir.ExternalTensor, ir.Tensor, ir.LazyTensor)):
        tensor.tofile(file)  # without a copy in memory
    else:
        file.write(tensor.tobytes())


def _reference(
    tensor: ir.TensorProtocol, location: str, offset: int | None, length: int | None, folder: Path
) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        offset,
        length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        base_dir=str(folder),
    )


def stand_in(tensor: ir.TensorProtocol, mark: str) -> ir.ExternalTensor:
    """A reference of the same type and shape as ``tensor`` that only carries ``mark``."""
    return _reference(tensor, mark, None, None, Path())


def free_location(name: str, folder: Path, model: ir.Model) -> str:
    """A file name for external data made from ``name`` that no tensor of the model uses already."""
    used = {os.path.realpath(tensor.path) for _, tensor in external_slots(model)}
    candidates = itertools.chain([f"{name}.data"], (f"{name}.{index}.data" for index in itertools.count(1)))
    return next(c for c in candidates if os.path.realpath(folder / c) not in used)
