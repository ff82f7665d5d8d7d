"""Which sequences of a model are one, from scope to scope, and could be a tensor: all elements of one static shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, label, loop_site
from onnx_cfad.graph.sequence_shapes import piece_length
from onnx_cfad.graph.walk import graphs_of, nodes_of

_COPIES = frozenset(("Identity", "SequenceErase", "SequenceInsert"))
_MAKERS = _COPIES | {"SequenceConstruct", "SequenceEmpty", "SplitToSequence", "Loop", "If"}
_READERS = _COPIES | {"ConcatFromSequence", "SequenceAt", "SequenceLength", "Loop"}


@dataclasses.dataclass(frozen=True)
class SequenceGroup:
    """Sequences that operators make of each other, that a Loop carries and that an If returns, in graph order.

    Attributes:
        members: The values.
        shape: The shape of an element; () where ``reason`` is given.
        reason: Why they stay sequences; "" where they could be tensors.
    """

    members: tuple[ir.Value, ...]
    shape: tuple[int, ...]
    reason: str


def sequence_groups(model: ir.Model) -> list[SequenceGroup]:
    """The groups of ``model``, whose types have been inferred."""
    values = [value for value in _values(model.graph) if isinstance(value.type, ir.SequenceType)]
    parents = {value: value for value in values}

    def root(value: ir.Value) -> ir.Value:
        while parents[value] is not value:
            parents[value] = value = parents[parents[value]]
        return value

    for node in nodes_of(model.graph):
        for same in _same(node):
            linked = [value for value in same if value in parents]
            for other in linked[1:]:
                parents[root(other)] = root(linked[0])
    found: dict[ir.Value, list[ir.Value]] = {}
    for value in values:
        found.setdefault(root(value), []).append(value)
    crossing = {*model.graph.inputs, *model.graph.outputs}
    return [_group(members, crossing) for members in found.values()]


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for inner in graphs_of(graph):
        yield from inner.inputs
        yield from (output for node in inner for output in node.outputs)


def _same(node: ir.Node) -> Iterator[tuple[ir.Value, ...]]:
    """The values of ``node`` that are one sequence, each with those that it becomes."""
    if is_loop(node):
        for carry in loop_site(node).carries:
            if isinstance(carry.entry.type, ir.SequenceType):
                yield carry.initial, carry.entry, carry.exit, carry.final
    elif is_branch(node):
        for index, output in enumerate(node.outputs):
            if isinstance(output.type, ir.SequenceType):
                yield output, *(branch.outputs[index] for branch in branch_site(node).branches)
    elif node.op_type in _COPIES and node.inputs[0] is not None:
        yield node.inputs[0], node.outputs[0]


def _group(members: list[ir.Value], crossing: set[ir.Value]) -> SequenceGroup:
    shapes = {None if v.shape is None else v.shape.dims for v in members if not _is_empty(v)}
    reasons = filter(None, (_why_not(value, crossing) for value in members))
    reason = next(reasons, None)
    if reason is None and (len(shapes) != 1 or None in shapes):
        reason = f"the elements of '{members[0].name}' have no one known shape"
    dims = next(iter(shapes)) if reason is None else ()
    if dims is None or not all(isinstance(d, int) for d in dims):
        reason = f"the elements of '{members[0].name}' have no static shape"
    elif 0 in dims:
        reason = f"the elements of '{members[0].name}' hold no numbers"
    if reason is not None:
        return SequenceGroup(tuple(members), (), reason)
    return SequenceGroup(tuple(members), tuple(d for d in dims or () if isinstance(d, int)), "")


def _is_empty(value: ir.Value) -> bool:
    """Whether ``value`` has no element whose shape it could tell."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "SequenceEmpty"


def _why_not(value: ir.Value, crossing: set[ir.Value]) -> str | None:
    if value in crossing:
        return f"'{value.name}' is an input or an output of the model"
    assert isinstance(value.type, ir.SequenceType)
    if value.dtype in (None, ir.DataType.STRING, ir.DataType.UNDEFINED):
        return f"the elements of '{value.name}' are no numbers"
    node = value.producer()
    if node is not None and (node.op_type not in _MAKERS or node.domain not in ("", "ai.onnx")):
        return f"{label(node)} makes '{value.name}'"
    if node is not None and node.op_type == "SplitToSequence" and piece_length(node) is None:
        return f"{label(node)} makes parts whose sizes are not known to be one"
    for use in value.uses():
        if use.node.op_type not in _READERS or use.node.domain not in ("", "ai.onnx"):
            return f"{label(use.node)} reads '{value.name}'"
    return None
