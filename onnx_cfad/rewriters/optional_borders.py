"""Optionals that a model takes or gives, where it carries lists inside: read once, and made again at the end."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder

_BOOL = ir.TensorType(ir.DataType.BOOL)
_Part = Callable[[Recorder, ir.Value], ir.Value]


def list_of_input(value: ir.Value, main: ir.Graph, namer: Namer, as_list: _Part) -> tuple[ir.Value, ir.Value]:
    """Reads an optional input in front of everything: what stands for it as a list, and whether it is there.

    Args:
        value: The input. The list takes its place wherever it is used.
        main: The main graph.
        namer: For new names.
        as_list: Makes a list of what the input holds.
    """
    assert isinstance(value.type, ir.OptionalType)
    element = value.type.elem_type
    kind = element if isinstance(element, ir.SequenceType) else ir.SequenceType(ir.TensorType(element.dtype))
    uses = list(value.uses())
    record, some, none = (Recorder(namer, "optional") for _ in range(3))
    full = record.OptionalHasElement(value)
    full.type, full.shape = _BOOL, ir.Shape([])
    held = some.OptionalGetElement(value)
    held.type, held.shape = element, value.shape
    listed, empty = as_list(some, held), none.SequenceEmpty(dtype=int(kind.elem_type.dtype))
    choice = record.If(full, then_branch=_branch(some, listed, namer), else_branch=_branch(none, empty, namer))
    for made in (listed, empty, choice):
        made.type, made.shape = kind, value.shape
    for use in uses:
        use.node.replace_input_with(use.idx, choice)
    if len(main):
        main.insert_before(main[0], record.nodes)
    else:
        main.extend(record.nodes)
    return choice, full


def optional_output(
    main: ir.Graph, position: int, kind: ir.OptionalType, there: ir.Value, namer: Namer, content: _Part
) -> None:
    """Makes an output of the model, which is a list, the optional that it was.

    Args:
        main: The main graph.
        position: Of the output.
        kind: Its type.
        there: Whether the optional holds something.
        namer: For new names.
        content: Makes of the list what the optional holds.
    """
    held = main.outputs[position]
    name, shape = held.name, held.shape
    record, some, none = (Recorder(namer, "optional") for _ in range(3))
    full, empty = some.Optional(content(some, held)), none.Optional()
    none.nodes[0].attributes.add(ir.AttrTypeProto("type", ir.TypeAndShape(kind.elem_type, shape)))
    given = record.If(there, then_branch=_branch(some, full, namer), else_branch=_branch(none, empty, namer))
    for made in (full, empty, given):
        made.type, made.shape = kind, shape
    held.name, given.name = namer.fresh(f"{name}.list"), name
    main.extend(record.nodes)
    main.outputs[position] = given


def _branch(record: Recorder, result: ir.Value, namer: Namer) -> ir.Graph:
    return ir.Graph([], [result], nodes=record.nodes, name=namer.fresh("optional"))
