"""Seeded mutations of a model: of the fields of its messages, of what its nodes say, and of its bytes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx.defs
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

_WHOLE_NUMBERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 16, 2**31 - 1, 2**62)
_NUMBERS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
_TEXTS = ("", "x", "y", "nowhere", "é", "a\0b", "/", "../up", "reduction", "linear", "x" * 300)
_INTEGERS = frozenset((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64))
_NATURALS = frozenset((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64))
_REALS = frozenset((FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE))


def mutated(model: ModelProto, seed: int) -> bytes:
    """The bytes of ``model`` with one to three mutations, which ``seed`` alone chooses."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        return _mutated_bytes(model.SerializeToString(deterministic=True), rng)
    copy = ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_mutate_node, _mutate_node, _mutate_field, _mutate_type))(copy, rng)
    return copy.SerializeToString(deterministic=True)


def parsed(content: bytes) -> ModelProto | None:
    """The message in ``content``; None where there is none."""
    try:
        return ModelProto.FromString(content)
    except DecodeError:
        return None


def _mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flips, inserts, removes or repeats bytes."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(found))
        end = min(len(found), at + rng.randrange(1, 8))
        match rng.randrange(5):
            case 0:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                found[at] = rng.randrange(256)
            case 2:
                found[at:at] = rng.randbytes(end - at)
            case 3:
                del found[at:end]
            case _:
                found[at:at] = found[at:end]
        if not found:
            return b""
    return bytes(found)


def _messages(message: Message) -> Iterator[Message]:
    """The message and every one in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _nodes(model: ModelProto) -> list[tuple[GraphProto | FunctionProto, int]]:
    owners = [message for message in _messages(model) if isinstance(message, (GraphProto, FunctionProto))]
    return [(owner, index) for owner in owners for index in range(len(owner.node))]


def _mutate_field(model: ModelProto, rng: random.Random) -> None:
    """One field of one message is cleared, set, repeated, shortened, put in another order or taken from elsewhere."""
    everything = list(_messages(model))
    message = rng.choice(everything)
    field: Any = rng.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _mutate_repeated(message, field, everything, rng)
    elif field.message_type is not None:
        donors = [m for m in everything if field.message_type == m.DESCRIPTOR and m is not message]
        if rng.random() < 0.5 or not donors:
            message.ClearField(field.name)
        else:
            donor = type(rng.choice(donors))()
            donor.CopyFrom(rng.choice(donors))
            getattr(message, field.name).CopyFrom(donor)
    elif rng.random() < 0.3:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, everything, rng))


def _mutate_repeated(message: Message, field: Any, everything: list[Message], rng: random.Random) -> None:
    values = getattr(message, field.name)
    choice = rng.randrange(4)
    if choice == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif choice == 1 and len(values):
        kept = [_copy(value) for value in values]
        kept.insert(rng.randrange(len(kept) + 1), _copy(rng.choice(kept)))
        _refill(values, kept)
    elif choice == 2 and len(values) > 1:
        kept = [_copy(value) for value in values]
        rng.shuffle(kept)
        _refill(values, kept)
    elif field.message_type is None:
        values.append(_scalar(field, everything, rng))
    else:
        donors = [m for m in everything if field.message_type == m.DESCRIPTOR]
        values.append(_copy(rng.choice(donors))) if donors else values.add()


def _copy(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _refill(values: Any, kept: list[Any]) -> None:
    del values[:]
    values.extend(kept)


def _scalar(field: Any, everything: list[Message], rng: random.Random) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in _INTEGERS:
        number = rng.choice(_WHOLE_NUMBERS)
        return number if field.cpp_type == FieldDescriptor.CPPTYPE_INT64 else max(-(2**31), min(number, 2**31 - 1))
    if field.cpp_type in _NATURALS:
        return rng.choice((0, 1, 7, 2**31))
    if field.cpp_type in _REALS:
        return rng.choice(_NUMBERS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\0", b"\xff\xfe", b"constant", b"lstm" * 4, rng.randbytes(8)))
    names = [m.name for m in everything if isinstance(m, (NodeProto, onnx.ValueInfoProto, TensorProto))]
    return rng.choice((*_TEXTS, *names))


def _mutate_node(model: ModelProto, rng: random.Random) -> None:
    """One node gets or loses an input, an output or an attribute, or is of another operator."""
    places = _nodes(model)
    if not places:
        return
    owner, index = rng.choice(places)
    node = owner.node[index]
    rng.choice(_NODE_MUTATIONS)(node, owner, rng)


def _drop(values: Any, rng: random.Random) -> None:
    if len(values):
        del values[rng.randrange(len(values))]


def _drop_input(node: NodeProto, _: Any, rng: random.Random) -> None:
    _drop(node.input, rng)


def _drop_output(node: NodeProto, _: Any, rng: random.Random) -> None:
    _drop(node.output, rng)


def _drop_attribute(node: NodeProto, _: Any, rng: random.Random) -> None:
    _drop(node.attribute, rng)


def _repeat_input(node: NodeProto, _: Any, rng: random.Random) -> None:
    if node.input:
        node.input.append(rng.choice(node.input))


def _add_output(node: NodeProto, _: Any, rng: random.Random) -> None:
    node.output.append(f"made_up_{rng.randrange(1000)}")


def _blank_input(node: NodeProto, _: Any, rng: random.Random) -> None:
    if node.input:
        node.input[rng.randrange(len(node.input))] = ""


def _blank_output(node: NodeProto, _: Any, rng: random.Random) -> None:
    if node.output:
        node.output[rng.randrange(len(node.output))] = ""


def _another_input(node: NodeProto, owner: GraphProto | FunctionProto, rng: random.Random) -> None:
    """An input becomes another value of the same graph, of whatever type and rank."""
    names = [name for other in owner.node for name in other.input]
    if isinstance(owner, GraphProto):
        names += [value.name for value in (*owner.input, *owner.initializer)]
    if node.input and names:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _another_operator(node: NodeProto, _: Any, rng: random.Random) -> None:
    node.op_type = rng.choice(_operators())


def _alter_attribute(node: NodeProto, _: Any, rng: random.Random) -> None:
    """An attribute gets another type or value; where the node has none, one that its operator knows."""
    if node.attribute and rng.random() < 0.8:
        attribute = rng.choice(node.attribute)
    else:
        known = _attribute_names(node.op_type)
        attribute = node.attribute.add(name=rng.choice(known) if known else "axis")
    name = attribute.name
    attribute.CopyFrom(_attribute(name, rng))


def _attribute(name: str, rng: random.Random) -> AttributeProto:
    value = rng.choice(
        (
            rng.choice(_WHOLE_NUMBERS),
            rng.choice(_NUMBERS),
            rng.choice(_TEXTS),
            [rng.choice(_WHOLE_NUMBERS) for _ in range(rng.randrange(1, 5))],
            [rng.choice(_NUMBERS)],
            ["tanh", rng.choice(_TEXTS)],
            onnx.helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0]),
            onnx.helper.make_tensor("t", TensorProto.INT64, [], [3]),
            TensorProto(name="t", data_type=TensorProto.STRING, dims=[1], string_data=[b"text"]),
            GraphProto(name="empty"),
        )
    )
    return onnx.helper.make_attribute(name, value)


def _mutate_type(model: ModelProto, rng: random.Random) -> None:
    """One declared type loses its content, or gets another rank, another element type or another kind."""
    types = [message for message in _messages(model) if isinstance(message, onnx.TypeProto)]
    if not types:
        return
    found = rng.choice(types)
    match rng.randrange(6):
        case 0:
            found.Clear()
        case 1:
            found.tensor_type.elem_type = rng.randrange(0, 26)
        case 2:
            found.tensor_type.ClearField("shape")
        case 3:
            found.tensor_type.shape.dim.add(dim_value=rng.choice(_WHOLE_NUMBERS))
        case 4:
            del found.tensor_type.shape.dim[:]
        case _:
            inner = _copy(found)
            rng.choice((found.sequence_type, found.optional_type)).elem_type.CopyFrom(inner)


_NODE_MUTATIONS: tuple[Callable[[NodeProto, Any, random.Random], None], ...] = (
    _drop_input,
    _drop_output,
    _drop_attribute,
    _repeat_input,
    _add_output,
    _blank_input,
    _blank_output,
    _another_input,
    _another_input,
    _another_operator,
    _another_operator,
    _alter_attribute,
    _alter_attribute,
)


@functools.cache
def _operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})


@functools.cache
def _attribute_names(op_type: str) -> list[str]:
    try:
        return sorted(onnx.defs.get_schema(op_type).attributes)
    except onnx.defs.SchemaError:
        return []
