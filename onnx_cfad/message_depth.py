"""How deep the messages of a model's file are nested: its readers give up at a limit, and so call the file broken."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.walk import subgraphs_of

LIMIT = 100
"""Messages inside messages that protobuf reads, in every language, unless it is told otherwise."""

_PER_GRAPH = 3  # node, attribute, graph
_LEAF = 5  # value info, type, tensor type, shape, dimension: the deepest that a graph holds besides its nodes
_PER_WRAPPING = 2  # sequence type and element type


def check_message_depth(model: ir.Model) -> None:
    """Refuses a model whose file could not be read again, before it is written.

    Raises:
        ModelError: Its subgraphs are nested too deep.
    """
    deepest = max(_depths(model))
    if deepest > LIMIT:
        raise ModelError(
            "model",
            f"its subgraphs are nested so deep that the file could not be read: {deepest} messages inside each other,"
            f" protobuf reads {LIMIT}",
            "Loops that are taped nest less than those that are checkpointed (--plan taped); else nest fewer loops.",
        )


def _depths(model: ir.Model) -> Iterator[int]:
    """A bound for each graph; cost is linear in the number of nodes."""
    pending = [(owner, 1) for owner in (model.graph, *(function.graph for function in model.functions.values()))]
    while pending:
        graph, depth = pending.pop()
        nodes = list(graph)
        types = [value.type for value in (*graph.inputs, *graph.outputs, *(o for node in nodes for o in node.outputs))]
        odd = [t for t in types if t is not None and type(t) is not ir.TensorType]  # to ask takes long
        wrapped = max(map(_wrappings, odd), default=0)
        pending.extend((inner, depth + _PER_GRAPH) for node in nodes for inner in subgraphs_of(node))
        yield depth + _LEAF + _PER_WRAPPING * wrapped


def _wrappings(type_: ir.TypeProtocol | None) -> int:
    """How many sequences and optionals a type is inside of."""
    count = 0
    while isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        count, type_ = count + 1, type_.elem_type
    return count
