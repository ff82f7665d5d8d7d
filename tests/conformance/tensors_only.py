"""A model that takes and gives tensors only, so that it can be differentiated: sequences are put together inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper


@dataclasses.dataclass(frozen=True)
class Side:
    """What stands for one input or output.

    Attributes:
        tensors: The inputs or outputs in its place.
        nodes: What makes it of them, or them of it, in order.
        arrays: Their values by name.
    """

    tensors: list[ValueInfoProto]
    nodes: list[NodeProto]
    arrays: dict[str, Any]


def through_tensors(
    model: ModelProto, feeds: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[ModelProto, dict[str, Any]]:
    """A copy of ``model`` that builds its sequences and optional values from tensors, and takes them apart again.

    Args:
        model: The model.
        feeds: Inputs by name: arrays, or lists of arrays.
        results: What it gives on them, likewise.

    Returns:
        The copy, which has an input ``<name>_<k>`` for element k of an input, and outputs likewise; and inputs for it.
    """
    before = [_put_together(value, feeds.get(value.name)) for value in model.graph.input]
    after = [_take_apart(value, results.get(value.name)) for value in model.graph.output]
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:], copy.graph.output[:], copy.graph.node[:]
    copy.graph.input.extend(tensor for side in before for tensor in side.tensors)
    copy.graph.output.extend(tensor for side in after for tensor in side.tensors)
    copy.graph.node.extend(node for side in before for node in side.nodes)
    copy.graph.node.extend(model.graph.node)
    copy.graph.node.extend(node for side in after for node in side.nodes)
    return copy, {name: array for side in before for name, array in side.arrays.items()}


def _put_together(value: ValueInfoProto, feed: Any) -> Side:
    if feed is None or value.type.HasField("tensor_type"):
        return Side([value], [], {} if feed is None else {value.name: feed})
    held, type_ = _inside_optional(value)
    wrap = [helper.make_node("Optional", [held], [value.name])] if held != value.name else []
    parts = _parts(held, feed)
    if not type_.HasField("sequence_type"):
        return Side(list(map(_declared, parts, parts.values())), wrap, parts)
    if parts:
        join = helper.make_node("SequenceConstruct", list(parts), [held])
    else:
        join = helper.make_node("SequenceEmpty", [], [held], dtype=type_.sequence_type.elem_type.tensor_type.elem_type)
    return Side(list(map(_declared, parts, parts.values())), [join, *wrap], parts)


def _take_apart(value: ValueInfoProto, result: Any) -> Side:
    if result is None or value.type.HasField("tensor_type"):
        return Side([value], [], {})
    held, type_ = _inside_optional(value)
    nodes = [helper.make_node("OptionalGetElement", [value.name], [held])] if held != value.name else []
    parts = _parts(held, result)
    for index, name in enumerate(parts if type_.HasField("sequence_type") else ()):
        at = helper.make_tensor(f"{name}_at", TensorProto.INT64, [], [index])
        nodes.append(helper.make_node("Constant", [], [f"{name}_at"], value=at))
        nodes.append(helper.make_node("SequenceAt", [held, f"{name}_at"], [name]))
    return Side(list(map(_declared, parts, parts.values())), nodes, parts)


def _inside_optional(value: ValueInfoProto) -> tuple[str, TypeProto]:
    """The name and the type of what an optional value holds; of another value, its own."""
    if value.type.HasField("optional_type"):
        return f"{value.name}_held", value.type.optional_type.elem_type
    return value.name, value.type


def _parts(name: str, value: Any) -> dict[str, Any]:
    """The elements of a sequence, or the tensor itself, by name."""
    if isinstance(value, list):
        return {f"{name}_{index}": np.asarray(part) for index, part in enumerate(value)}
    return {name: np.asarray(value)}


def _declared(name: str, array: Any) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
