"""Optional tensors that cross control flow become lists of at most one element, which can be run backwards.

Given::

    o = Optional <type = tensor(float)> ()
    r, p = Loop (n, c, x, o) <body (i, go, v, optional(tensor(float)) e) {
        h = OptionalHasElement (e)   g = OptionalGetElement (e) ...   q = Optional (v) } -> q>

Result::

    o = SequenceEmpty ()
    r, p = Loop (n, c, x, o) <body (i, go, v, seq(tensor(float)) e) {
        k = SequenceLength (e)   h = Greater (k, 0)   g = SequenceAt (e, 0) ...   q = SequenceConstruct (v) } -> q>

TorchScript writes a variable that is None at first so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, loop_site
from onnx_cfad.names import Namer

_READS = ("OptionalHasElement", "OptionalGetElement")
_Links = dict[ir.Value, list[ir.Value]]


class ListOptionalsPass(ir.passes.InPlacePass):
    """Rewrites every group of optional tensors that a Loop carries or an If returns, at any depth.

    A group is what is the same optional from one scope to the next. One that is an output of the model stays as it is,
    and so does an optional list, since a list holds no lists.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites what can be."""
        links, crossing = _linked(model)
        self._namer = Namer.on_demand(model)
        seen: set[ir.Value] = set()
        modified = False
        for value in crossing:
            if value in seen or not _is_optional_tensor(value):
                continue
            group = _reached(value, links)
            seen.update(group)
            if all(_may_change(member, links, model.graph) for member in group):
                self._rewrite(group, model.graph)
                modified = True
        return ir.passes.PassResult(model, modified)

    def _rewrite(self, group: list[ir.Value], main: ir.Graph) -> None:
        kind = next(v.type.elem_type for v in group if isinstance(v.type, ir.OptionalType))
        assert isinstance(kind, ir.TensorType)
        for value in group:
            reads = [use.node for use in value.uses() if use.node.op_type in _READS]
            held = self._list_of_input(value, kind, main) if value.is_graph_input() and value.graph is main else value
            if held is value:
                value.type = ir.SequenceType(kind)
                value.shape = value.shape if value.shape is not None and value.shape.dims else None
                self._list_of_made(value, kind)
            for read in reads:
                self._settle(read, held)

    def _list_of_made(self, value: ir.Value, kind: ir.TensorType) -> None:
        """An Optional as the operator that makes a list of its content."""
        node = value.producer()
        if node is None or node.op_type != "Optional":
            return
        content = [x for x in node.inputs if x is not None]
        made = (
            ir.Node("", "SequenceConstruct", content, name=node.name)
            if content
            else ir.Node("", "SequenceEmpty", [], [ir.AttrInt64("dtype", int(kind.dtype))], name=node.name)
        )
        _replace(node, [made], made.outputs[0])

    def _list_of_input(self, value: ir.Value, kind: ir.TensorType, main: ir.Graph) -> ir.Value:
        """A list of what an optional input of the model holds."""
        users = [use for use in value.uses() if use.node.op_type not in _READS]
        full = self._node("OptionalHasElement", [value], ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
        got = self._node("OptionalGetElement", [value], kind, value.shape)
        some = self._node("SequenceConstruct", [got.outputs[0]], ir.SequenceType(kind), value.shape)
        none = self._node("SequenceEmpty", [], ir.SequenceType(kind), None)
        none.attributes.add(ir.AttrInt64("dtype", int(kind.dtype)))
        branches = [
            ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, name=name)
            for name, nodes in (("some", [got, some]), ("none", [none]))
        ]
        choice = self._node("If", [full.outputs[0]], ir.SequenceType(kind), value.shape)
        for name, branch in zip(("then_branch", "else_branch"), branches, strict=True):
            choice.attributes.add(ir.AttrGraph(name, branch))
        for node, index in users:
            node.replace_input_with(index, choice.outputs[0])
        if len(main):
            main.insert_before(main[0], [full, choice])
        return choice.outputs[0]

    def _settle(self, read: ir.Node, held: ir.Value) -> None:
        """Replaces a read of an optional by one of its list."""
        zero = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.int64(0)))])
        zero.name, zero.outputs[0].name = self._namer.fresh("optional/zero"), self._namer.fresh("optional/zero.out")
        zero.outputs[0].type, zero.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        zero.outputs[0].const_value = ir.tensor(np.int64(0))
        if read.op_type == "OptionalGetElement":
            made = ir.Node("", "SequenceAt", [held, zero.outputs[0]], name=read.name)
            _replace(read, [zero, made], made.outputs[0])
            return
        count = self._node("SequenceLength", [held], ir.TensorType(ir.DataType.INT64), ir.Shape([]))
        made = ir.Node("", "Greater", [count.outputs[0], zero.outputs[0]], name=read.name)
        _replace(read, [zero, count, made], made.outputs[0])

    def _node(self, op_type: str, inputs: list[ir.Value], kind: ir.TypeProtocol, shape: ir.Shape | None) -> ir.Node:
        node = ir.Node("", op_type, inputs, name=self._namer.fresh(f"optional/{op_type}"))
        output = node.outputs[0]
        output.name, output.type, output.shape = self._namer.fresh(f"optional/{op_type}.out"), kind, shape
        return node


def _replace(old: ir.Node, nodes: list[ir.Node], made: ir.Value) -> None:
    given = old.outputs[0]
    made.name, made.type, made.shape = given.name, given.type, given.shape
    graph = old.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, old, [old], nodes, [given], [made])


def _is_optional_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.OptionalType) and isinstance(value.type.elem_type, ir.TensorType)


def _linked(model: ir.Model) -> tuple[_Links, list[ir.Value]]:
    """Which values are the same value in the next scope, or copies, and those that cross into a scope."""
    links: _Links = defaultdict(list)
    crossing: list[ir.Value] = []
    for node in model.graph.all_nodes():
        for values in _same(node):
            for value in values[1:]:
                links[values[0]].append(value)
                links[value].append(values[0])
            if node.op_type != "Identity":
                crossing.extend(values)
    return links, crossing


def _same(node: ir.Node) -> Iterator[tuple[ir.Value, ...]]:
    if is_loop(node):
        for carry in loop_site(node).carries:
            yield carry.initial, carry.entry, carry.exit, carry.final
    elif is_branch(node):
        site = branch_site(node)
        for index, output in enumerate(node.outputs):
            yield output, *(branch.outputs[index] for branch in site.branches)
    elif node.op_type == "Identity" and node.inputs[0] is not None:
        yield node.inputs[0], node.outputs[0]


def _reached(value: ir.Value, links: _Links) -> list[ir.Value]:
    found, pending = {value: None}, [value]
    while pending:
        for other in links.get(pending.pop(), []):
            if other not in found:
                found[other] = None
                pending.append(other)
    return list(found)


def _may_change(value: ir.Value, links: _Links, main: ir.Graph) -> bool:
    if value.type is not None and not _is_optional_tensor(value):
        return False
    if value.is_graph_output() and value.graph is main:
        return False
    made = value.producer()
    makers = made is None or made.op_type in ("Optional", "Identity") or value in links
    return makers and all(_is_known(use.node, value, links) for use in value.uses())


def _is_known(node: ir.Node, value: ir.Value, links: _Links) -> bool:
    return node.op_type in _READS or (value in links and (node.op_type == "Identity" or is_loop(node)))
