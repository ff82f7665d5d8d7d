"""Optional carries that always hold something are carried as what they hold.

Given::

    o = Optional (s)
    r = Loop (n, c, o) <body (i, go, optional(seq) e) { h = OptionalHasElement (e)  g = OptionalGetElement (e) ... x }>

where ``x`` is no optional (or ``Optional`` of something)::

    r = Loop (n, c, s) <body (i, go, seq e) { h = Constant (true)  g = Identity (e) ... x }>

The tests for an element then fold, and the list that is carried can be run backwards.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import Carry, is_loop, loop_site
from onnx_cfad.graph.walk import nodes_of

_READS = ("OptionalHasElement", "OptionalGetElement")


class UnwrapOptionalsPass(ir.passes.InPlacePass):
    """Carries the content of an optional in loops, at any depth, that only read it so.

    The body has to declare the shape of a list's elements.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Unwraps what can be."""
        modified = False
        for node in nodes_of(model.graph):
            if is_loop(node) and node.op_type == "Loop":
                site = loop_site(node)
                carries = [carry for carry in site.carries if _is_always_full(carry)]
                for carry in carries:
                    _unwrap(node, carry)
                modified |= bool(carries)
        return ir.passes.PassResult(model, modified)


def _is_always_full(carry: Carry) -> bool:
    if not isinstance(carry.entry.type, ir.OptionalType) or _content(carry.initial) is None:
        return False
    if carry.entry.shape is None or not carry.entry.shape.dims:
        # Elements may differ in rank (a rank of 0 is also declared for want of a better one), and the shape inference
        # of onnx 1.23 takes the rank of the first one for all.
        return False
    exits = _content(carry.exit) is not None
    if not exits and (carry.exit.type is None or isinstance(carry.exit.type, ir.OptionalType)):
        return False
    final = not isinstance(carry.final.type, ir.OptionalType) or _is_only_read(carry.final)
    return _is_only_read(carry.entry) and final


def _content(value: ir.Value) -> ir.Value | None:
    """What an optional holds for certain; None where it may be empty."""
    node = value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Optional" and node.inputs else None


def _is_only_read(value: ir.Value) -> bool:
    return not value.is_graph_output() and all(use.node.op_type in _READS for use in value.uses())


def _unwrap(node: ir.Node, carry: Carry) -> None:
    held = _content(carry.initial)
    assert held is not None
    assert isinstance(carry.entry.type, ir.OptionalType)
    kind = carry.entry.type.elem_type
    made = carry.initial.producer()
    node.replace_input_with(next(i for i, v in enumerate(node.inputs) if v is carry.initial), held)
    inner, body = _content(carry.exit), carry.entry.graph
    if inner is not None and body is not None:
        position = list(body.outputs).index(carry.exit)
        copy = ir.Node("", "Identity", [inner], name=f"{carry.exit.name}/content")
        copy.outputs[0].name, copy.outputs[0].type = f"{carry.exit.name}.content", kind
        body.append(copy)
        body.outputs[position] = copy.outputs[0]
    carry.entry.type = kind
    for value in (carry.entry, carry.final):
        optional = value is carry.entry or isinstance(value.type, ir.OptionalType)
        if optional:
            value.type = kind
            for use in list(value.uses()):
                _settle(use.node, value)
    if made is not None and made.graph is not None and not carry.initial.uses() and not carry.initial.is_graph_output():
        made.graph.remove(made, safe=True)


def _settle(read: ir.Node, value: ir.Value) -> None:
    """Replaces a read of an optional by one of its content."""
    full = ir.tensor(True)
    new = (
        ir.Node("", "Constant", [], [ir.AttrTensor("value", full)], name=read.name)
        if read.op_type == "OptionalHasElement"
        else ir.Node("", "Identity", [value], name=read.name)
    )
    old, made = read.outputs[0], new.outputs[0]
    made.name, made.type, made.shape = old.name, old.type, old.shape
    if read.op_type == "OptionalHasElement":
        made.const_value = full
    graph = read.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, read, [read], [new], [old], [made])
