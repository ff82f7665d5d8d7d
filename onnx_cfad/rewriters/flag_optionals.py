"""Optional lists that cross control flow become a list and a flag that says whether there is one.

Given::

    o = Optional <type = seq(tensor(float))> ()
    r = Loop (n, c, o) <body (i, go, optional(seq(tensor(float))) e) {
        h = OptionalHasElement (e)   g = OptionalGetElement (e) ...   q = Optional (s) } -> q>

Result::

    o = SequenceEmpty ()   f = Constant <value = false> ()
    r, p = Loop (n, c, o, f) <body (i, go, seq(tensor(float)) e, bool k) {
        h = Identity (k)   g = Identity (e) ...   q = Identity (s)   t = Constant <value = true> () } -> q, t>

An optional tensor becomes a list of at most one element instead (see ``list_optionals``): a tensor that is not there
has no shape, and a list that is not there may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, loop_site
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.optional_borders import list_of_input, optional_output
from onnx_cfad.rewriters.optional_groups import READS, Group, groups, replace
from onnx_cfad.rewriters.recorder import Recorder

_BOOL = ir.TensorType(ir.DataType.BOOL)


class FlagOptionalListsPass(ir.passes.InPlacePass):
    """Rewrites every optional list that a Loop carries or an If returns, at any depth, and what is linked to it.

    A list that takes the place of an optional one (ONNX Runtime lets a body return it) is there for certain. An
    optional list that another operator makes or uses stays as it is. One that is an output of the model is made an
    optional again at its end.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites what can be."""
        found = [
            group
            for group in groups(model, _is_optional_list)
            if all(_may_change(value, group) for value in group.members)
        ]
        if found:
            _Flagging(model, {value: _kind(group) for group in found for value in group.members}).run()
        return ir.passes.PassResult(model, bool(found))


class _Flagging:
    """Rewrites members in graph order; ``flags`` has what has been reached, and what stands for it as a list."""

    def __init__(self, model: ir.Model, members: Mapping[ir.Value, ir.SequenceType]) -> None:
        self.main, self.members, self.namer = model.graph, members, Namer.of_model(model)
        self.flags: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        given = [value for value in self.main.inputs if value in self.members]
        returned = {k: v.type for k, v in enumerate(self.main.outputs) if isinstance(v.type, ir.OptionalType)}
        for value in given:
            held, full = list_of_input(value, self.main, self.namer, lambda record, held: record.Identity(held))
            self.flags[held] = full
        self.graph(self.main)
        for position, kind in returned.items():
            value = self.main.outputs[position]
            if value in self.flags:
                optional_output(self.main, position, kind, self.flags[value], self.namer, lambda _, held: held)

    def graph(self, graph: ir.Graph) -> None:
        for node in list(graph):
            self.node(node)

    def node(self, node: ir.Node) -> None:
        if is_loop(node) and node.op_type == "Loop":
            self.loop(node)
        elif is_branch(node):
            self.branch(node)
        elif subgraphs_of(node):
            for inner in subgraphs_of(node):
                self.graph(inner)
        elif node.op_type in READS and node.inputs[0] in self.flags:
            self.read(node, node.inputs[0])
        elif node.op_type == "Optional" and node.outputs[0] in self.members:
            self.made(node)
        elif node.op_type == "Identity" and node.inputs[0] in self.flags:
            _as_list(node.outputs[0])
            self.flags[node.outputs[0]] = self.flags[node.inputs[0]]

    def loop(self, node: ir.Node) -> None:
        """Carries a flag behind the other carries for each carry that is a member."""
        site = loop_site(node)
        carried = [k for k, carry in enumerate(site.carries) if carry.final in self.members]
        starts = [self.flag_of(site.carries[k].initial) for k in carried]
        for k in carried:
            entry = site.carries[k].entry
            _as_list(entry)
            self.flags[entry] = self.named(ir.Value(), entry)
            site.body.inputs.append(self.flags[entry])
        self.graph(site.body)
        if not carried:
            return
        count, extra = len(site.carries), len(carried)
        for offset, k in enumerate(carried):
            site.body.outputs.insert(1 + count + offset, self.own(self.flag_of(site.body.outputs[1 + k]), site.body))
        new = ir.Node(
            node.domain, node.op_type, [*node.inputs, *starts], node.attributes.values(),
            num_outputs=len(node.outputs) + extra, name=node.name, doc_string=node.doc_string,
            metadata_props=node.metadata_props,
        )  # fmt: skip
        finals, flags, stacks = new.outputs[:count], new.outputs[count : count + extra], new.outputs[count + extra :]
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], [new], node.outputs, [*finals, *stacks])
        for k, flag in zip(carried, flags, strict=True):
            _as_list(finals[k])
            self.flags[finals[k]] = self.named(flag, finals[k])

    def branch(self, node: ir.Node) -> None:
        """Returns a flag behind the other outputs for each output that is a member."""
        returned = [k for k, output in enumerate(node.outputs) if output in self.members]
        count = len(node.outputs)
        node.resize_outputs(count + len(returned))
        for branch in branch_site(node).branches:
            self.graph(branch)
            branch.outputs.extend([self.own(self.flag_of(branch.outputs[k]), branch) for k in returned])
        for offset, k in enumerate(returned):
            _as_list(node.outputs[k])
            self.flags[node.outputs[k]] = self.named(node.outputs[count + offset], node.outputs[k])

    def made(self, node: ir.Node) -> None:
        """An Optional as its content, and a flag that is known."""
        record, content = Recorder(self.namer, "optional"), [value for value in node.inputs if value is not None]
        dtype = self.members[node.outputs[0]].elem_type.dtype
        made = record.Identity(*content) if content else record.SequenceEmpty(dtype=int(dtype))
        flag = record.constant(bool(content))
        replace(node, record.nodes, made)
        _as_list(made)
        self.flags[made] = flag

    def read(self, node: ir.Node, value: ir.Value) -> None:
        record = Recorder(self.namer, "optional")
        made = record.Identity(value if node.op_type == "OptionalGetElement" else self.flags[value])
        replace(node, record.nodes, made)

    def flag_of(self, value: ir.Value) -> ir.Value:
        """The flag of a member; true for a list that is no optional."""
        if value not in self.flags:
            assert value.graph is not None
            record = Recorder(self.namer, "optional")
            self.flags[value] = record.constant(True)
            value.graph.insert_before(value.graph[0], record.nodes)
        return self.flags[value]

    def own(self, flag: ir.Value, graph: ir.Graph) -> ir.Value:
        """A flag as an output of ``graph``, which must have each of its outputs made for itself."""
        record = Recorder(self.namer, "optional")
        copy = record.Identity(flag)
        copy.type, copy.shape = _BOOL, ir.Shape([])
        graph.extend(record.nodes)
        return copy

    def named(self, flag: ir.Value, value: ir.Value) -> ir.Value:
        """A new value as the flag of ``value``."""
        flag.name, flag.type, flag.shape = self.namer.fresh(f"{value.name}.present"), _BOOL, ir.Shape([])
        return flag


def _as_list(value: ir.Value) -> None:
    """Gives a member the type of its list; a rank of 0 is also declared for want of a better one."""
    if isinstance(value.type, ir.OptionalType):
        value.type = value.type.elem_type
        value.shape = value.shape if value.shape is not None and value.shape.dims else None


def _is_optional_list(value: ir.Value) -> bool:
    return isinstance(value.type, ir.OptionalType) and isinstance(value.type.elem_type, ir.SequenceType)


def _kind(group: Group) -> ir.SequenceType:
    kinds = (v.type.elem_type for v in group.members if isinstance(v.type, ir.OptionalType))
    return next(kind for kind in kinds if isinstance(kind, ir.SequenceType))


def _may_change(value: ir.Value, group: Group) -> bool:
    return isinstance(value.type, ir.SequenceType) or group.is_read_only_as_optional(value)
