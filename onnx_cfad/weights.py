"""Tensors that a model holds outside its file: where they lie, that they may lie there, and moving them."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from onnx_cfad.errors import ModelError

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
        for graph in (owner, *owner.subgraphs()):
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


def adopt_folder(model: ir.Model, folder: Path) -> None:
    """Says that the external tensors of a model lie in ``folder``, and checks that they do. Nothing is read.

    Raises:
        ModelError: A location leads out of the folder, or the file is not there or too short.
    """
    sizes: dict[str, int] = {}
    for _, tensor in external_slots(model):
        tensor.base_dir = str(folder)
        location = str(tensor.location)
        if location not in sizes:
            sizes[location] = _size_inside(folder, tensor)
        _check_extent(tensor, sizes[location])


def _size_inside(folder: Path, tensor: ir.ExternalTensor) -> int:
    """The size of a tensor's file in bytes; the file must lie in ``folder``, links followed."""
    where = f"tensor {tensor.name!r}"
    location = str(tensor.location)
    path = folder / location
    if not location or Path(location).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise ModelError(
            where,
            f"its external data '{location}' lies outside the folder of the model",
            "External data must be in the folder of the model, or in a folder inside it.",
        )
    if not path.is_file():
        raise ModelError(where, f"its external data file '{location}' is missing", "Put it beside the model.")
    return path.stat().st_size


def _check_extent(tensor: ir.ExternalTensor, size: int) -> None:
    if tensor.dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"tensor {tensor.name!r}", "it has no element type")
    offset = tensor.offset or 0
    length = tensor.nbytes if tensor.length is None else tensor.length
    if any(not isinstance(d, int) or d < 0 for d in tensor.shape) or length != tensor.nbytes:
        raise ModelError(
            f"tensor {tensor.name!r}", f"it has {length} bytes of external data, its shape needs {tensor.nbytes}"
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
