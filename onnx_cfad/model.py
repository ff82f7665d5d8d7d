"""Loading models, which are untrusted, and bringing them into the form that everything else works on."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import Protocol, TypeAlias, Union

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.serde import TensorProtoTensor

from onnx_cfad import weights
from onnx_cfad.collector import collect_before_loading, loaded, resting_collector
from onnx_cfad.dimension_names import plain_dimension_names
from onnx_cfad.errors import ModelError
from onnx_cfad.expand_bodies import expand_bodies
from onnx_cfad.functions import inline_functions, root_message
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.model_file import check_model_file, not_a_model
from onnx_cfad.opsets import convert_opset, stamp_versions
from onnx_cfad.rewriters.expand_sequence_map import ExpandSequenceMapPass
from onnx_cfad.saving import fingerprint, quiet_serde, save
from onnx_cfad.scopes import MAX_DEPTH, check_definitions, check_depth, check_sites, make_names_unique
from onnx_cfad.signatures import check_signatures
from onnx_cfad.sparse import make_dense

__all__ = ["Source", "fingerprint", "load", "normalise", "save"]


class Program(Protocol):
    """Something that holds an ``ir.Model``, as PyTorch's ``ONNXProgram`` does."""

    @property
    def model(self) -> ir.Model:
        """The model."""
        ...


Source: TypeAlias = Union[str, "os.PathLike[str]", onnx.ModelProto, ir.Model, Program]
"""Where a model can come from."""

_DATA_FIELDS = ("float_data", "double_data", "int64_data", "int32_data", "uint64_data")
_DATA_TYPES = frozenset(int(dtype) for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED)
_MAX_NODES = 1_000_000
_REMEDY = "Export or download the model again."
_OLDEST_IR_WITH_DEFAULTS = 4
"""Before this IR version an initializer had to be a graph input too, without being one for the caller."""


def load(source: Source) -> ir.Model:
    """A model of its own: what it was made from is never changed, and external data stays on disk, unread.

    Args:
        source: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.

    Raises:
        ModelError: The file or the model is unusable; the message says where and why.
    """
    collect_before_loading()
    with resting_collector():
        return _loaded(source)


def _loaded(source: Source) -> ir.Model:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        model = _deserialize(_read(path), str(path))
        weights.adopt_folder(model, path)
    elif isinstance(source, onnx.ModelProto):
        _check_proto_depth(source)
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        model = _deserialize(proto, "model")
    else:
        held = getattr(source, "model", source)
        if not isinstance(held, ir.Model):
            raise ModelError(
                "", f"a value of type {type(source).__name__} is no model", "Give a path, a ModelProto or an ir.Model."
            )
        _check_depth(held)
        _check(held)
        return held.clone()
    _check(model)
    return model


def normalise(model: ir.Model) -> ir.Model:
    """Brings ``model`` into the normal form, in place: one opset of 18 or newer, no local functions, unique names.

    Names of values in the main graph stay as they are.

    Raises:
        ModelError: The functions cannot be inlined, or a node cannot be converted.
    """
    _drop_initializers_from_inputs(model)
    stamp_versions(model)
    inline_functions(model)
    convert_opset(model)
    expand_bodies(model)
    ExpandSequenceMapPass()(model)
    model.ir_version = max(model.ir_version, _ir_version_for(model.opset_imports[""]))
    check_depth(model.graph, "main")
    check_sites(model.graph, "main")
    make_names_unique(model)
    plain_dimension_names(model)
    return model


def _read(path: Path) -> onnx.ModelProto:
    where = str(path)
    check_model_file(path)
    try:
        return onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise ModelError(where, f"cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise not_a_model(path) from error


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    if not proto.HasField("graph"):
        raise ModelError(where, "is not an ONNX model: it has no graph", "Export or download it again.")
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(where, "is not an ONNX model: its graph is empty", "Export or download it again.")
    make_dense(proto, where)
    names = collections.Counter((function.domain, function.name, function.overload) for function in proto.functions)
    for (domain, name, _), count in names.items():
        if count > 1:
            raise ModelError(f"function {domain}::{name}", f"it is defined {count} times", "Remove all but one.")
    try:
        with quiet_serde():
            model = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise ModelError(where, f"is not a valid model: {root_message(error)}", "Export it again.") from error
    _check_depth(model)
    return model


def _check_proto_depth(proto: onnx.ModelProto) -> None:
    """A message made in memory may be nested deeper than the recursive functions on it can go; a file cannot."""
    pending = [(node, 1) for owner in (proto.graph, *proto.functions) for node in owner.node]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ModelError("model", f"its subgraphs are nested more than {MAX_DEPTH} deep", "Nest fewer.")
        for attribute in node.attribute:
            graphs = (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs
            pending.extend((inner, depth + 1) for graph in graphs for inner in graph.node)


def _owners(model: ir.Model) -> list[tuple[str, ir.Graph, bool]]:
    """The main graph and those of the functions: where it is, the graph, whether it is of a function."""
    functions = [(f"function {f.domain}::{f.name}", f.graph, True) for f in model.functions.values()]
    return [("main", model.graph, False), *functions]


def _check_depth(model: ir.Model) -> None:
    for where, graph, _ in _owners(model):
        check_depth(graph, where)


def _check(model: ir.Model) -> None:
    """Refuses what no later stage could work on, or what would make it work without end; the depth is checked."""
    for where, graph, in_function in _owners(model):
        if len(nodes_of(graph)) > _MAX_NODES:
            raise ModelError(where, f"has more than {_MAX_NODES:,} nodes", "Write what repeats as a Loop.")
        check_definitions(graph, where, in_function=in_function)
    check_signatures(model)
    for value in model.graph.inputs:
        _check_type(value)
    tensors = [slot.tensor for slot in weights.slots(model)]
    for tensor in tensors:
        _check_content(tensor)
    loaded(sum(tensor.nbytes for tensor in tensors if isinstance(tensor, TensorProtoTensor)))


def _check_type(value: ir.Value) -> None:
    type_ = value.type
    while isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        type_ = type_.elem_type
    if type_ is None or type_.dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(f"input '{value.name}'", "it is declared without an element type", "Export the model again.")


def _check_content(tensor: ir.TensorProtocol) -> None:
    """Refuses a tensor whose bytes do not fill its shape: reading it would fail, or ask for any amount of memory."""
    if not isinstance(tensor, TensorProtoTensor):
        return
    proto = tensor.raw
    if proto.data_type not in _DATA_TYPES:
        raise ModelError(f"tensor {tensor.name!r}", f"its element type {proto.data_type} does not exist", _REMEDY)
    if proto.HasField("raw_data"):
        found, wanted, unit = len(proto.raw_data), tensor.nbytes, "bytes"
    else:
        field = onnx.helper.tensor_dtype_to_field(proto.data_type)  # the one that readers of this type look into
        found, wanted, unit = len(getattr(proto, field)), tensor.size, "elements"
        if any(len(getattr(proto, other)) for other in _DATA_FIELDS if other != field):
            raise ModelError(f"tensor {tensor.name!r}", f"it holds data in another field than {field}", _REMEDY)
        per_element = {ir.DataType.COMPLEX64: 2, ir.DataType.COMPLEX128: 2}.get(tensor.dtype, 1)
        wanted = wanted * per_element if tensor.dtype.bitwidth >= 8 else found
    if any(dimension < 0 for dimension in proto.dims) or found != wanted:
        raise ModelError(
            f"tensor {tensor.name!r}", f"it holds {found} {unit}, its shape {list(proto.dims)} needs {wanted}", _REMEDY
        )


def _drop_initializers_from_inputs(model: ir.Model) -> None:
    if model.ir_version >= _OLDEST_IR_WITH_DEFAULTS:
        return
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)


def _ir_version_for(opset: int) -> int:
    return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
