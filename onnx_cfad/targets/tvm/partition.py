"""Splits a model into straight-line bodies and a host program: what is control flow, and what is arithmetic.

The nodes of a region become as few bodies as the sites between them allow: a node belongs to the first body after the
last site that it depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from onnx_cfad.graph.regions import (
    BranchSite,
    LoopSite,
    branch_site,
    captured_by,
    is_branch,
    is_loop,
    loop_site,
    subgraphs_of,
)
from onnx_cfad.graph.site_marks import marked
from onnx_cfad.graph.trips import goes_on
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.ports import type_name
from onnx_cfad.targets.tvm.host_values import OPERATORS
from onnx_cfad.targets.tvm.hostprog import (
    Block,
    Branch,
    Call,
    CarryStep,
    HostProgram,
    ListStep,
    Repeat,
    SliceStep,
    StackStep,
    Step,
)

Whole = Callable[[ir.Node], bool]
"""Whether a control-flow node stays whole, as a body of its own, because its runner computes it as one function."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """A model in two parts.

    Attributes:
        program: The control flow.
        bodies: The straight-line models that it calls, by name. Initializers are theirs; inputs and outputs are in the
            order that the calls state, under the same names.
        sites: For each branch of the program the path of the If that it is of, where its If is marked with one.
    """

    program: HostProgram
    bodies: dict[str, ir.Model]
    sites: dict[str, str] = dataclasses.field(default_factory=dict[str, str])


def partition(model: ir.Model, whole: Whole = lambda node: False) -> Partition:  # noqa: ARG005
    """The host program and the bodies of ``model``, which is not changed.

    Args:
        model: The model; local functions are inlined.
        whole: Says which control-flow nodes stay whole, each in a body of its own; such a node must have tensors alone.

    Raises:
        ModelError: The model is unusable.
    """
    model = normalise(model.clone())
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_types(model)
    return _Partitioner(model, whole).run()


class _Partitioner:
    def __init__(self, model: ir.Model, whole: Whole) -> None:
        self.model = model
        self.whole = whole
        self.constants: dict[str, np.ndarray] = {}
        self.bodies: dict[str, ir.Model] = {}
        self.sites: dict[str, str] = {}
        self.needed: set[ir.Value] = set()
        self.copies: dict[ir.Value, ir.Value] = {}

    def run(self) -> Partition:
        graph = self.model.graph
        inputs, outputs = (tuple(_name(value) for value in values) for values in (graph.inputs, graph.outputs))
        regions = list(self.regions(graph))
        for region, _ in regions:
            self.pass_copies(region)
        for region, results in regions:
            self.needed.update(self.copies.get(result, result) for result in results)
            self.needed.update(v for node in region if self.is_host_step(node) for v in node.inputs if v is not None)
        block = self.block(graph, "main", graph.outputs)
        for value in graph.inputs:
            if value.const_value is not None:
                self.constants[_name(value)] = value.const_value.numpy()
        return Partition(HostProgram(inputs, outputs, block, self.constants), self.bodies, self.sites)

    def regions(self, graph: ir.Graph, skipped: int = 0) -> Iterator[tuple[ir.Graph, Sequence[ir.Value]]]:
        """``graph`` and the graphs inside it that the host runs, each with the results that are read."""
        yield graph, graph.outputs[skipped:]
        for node in graph:
            if self.is_host_step(node):
                endless = node.op_type == "Loop" and goes_on(loop_site(node))
                for inner in subgraphs_of(node):
                    yield from self.regions(inner, int(endless))

    def pass_copies(self, graph: ir.Graph) -> None:
        """Readers of an Identity read its source: the host moves references, so a copy is no step."""
        for node in list(graph):
            source = node.inputs[0] if _is_copy(node) else None
            if source is not None:
                self.copies[node.outputs[0]] = source
                for use in list(node.outputs[0].uses()):
                    use.node.replace_input_with(use.idx, source)

    def is_host_step(self, node: ir.Node) -> bool:
        if is_loop(node) or is_branch(node):
            return not self.whole(node)
        return node.op_type in OPERATORS and node.domain in ("", "ai.onnx")

    def slot(self, value: ir.Value | None) -> str:
        """The name of a value that the host reads; a constant becomes one of the program."""
        if value is None:
            return ""
        value = self.copies.get(value, value)
        if _is_constant(value) and value.const_value is not None:
            self.constants.setdefault(_name(value), value.const_value.numpy())
        return _name(value)

    def slots(self, values: Iterable[ir.Value | None]) -> tuple[str, ...]:
        return tuple(self.slot(value) for value in values)

    def block(self, graph: ir.Graph, path: str, outputs: Iterable[ir.Value]) -> Block:
        steps: list[Step] = []
        for position, (nodes, hosted) in enumerate(self.levels(graph)):
            call = self.call(nodes, f"{path}/{position}")
            steps.extend([] if call is None else [call])
            for number, node in enumerate(hosted):
                alone = None if self.is_host_step(node) else self.call([node], f"{path}/{position}.{number}")
                steps.append(self.step(node, path) if alone is None else alone)
        return Block(tuple(steps), self.slots(outputs))

    def levels(self, graph: ir.Graph) -> list[tuple[list[ir.Node], list[ir.Node]]]:
        """Plain nodes, then host steps that depend on them, then plain nodes that depend on those, and so on."""
        level: dict[ir.Value, int] = {}
        found: list[tuple[list[ir.Node], list[ir.Node]]] = []
        for node in (node for node in graph if not _is_copy(node)):
            reads = [*(v for v in node.inputs if v is not None), *captured_by(node)]
            first = max((level.get(v, 0) for v in reads), default=0)
            hosted = self.is_host_step(node) or is_loop(node) or is_branch(node)  # a site that stays whole is alone
            while len(found) <= first:
                found.append(([], []))
            found[first][hosted].append(node)
            level.update(dict.fromkeys(node.outputs, first + hosted))
        return found

    def call(self, nodes: list[ir.Node], name: str) -> Call | None:
        own = {*nodes, *(inner for node in nodes for graph in subgraphs_of(node) for inner in graph.all_nodes())}
        made = [output for node in nodes for output in node.outputs]
        outputs = [v for v in made if v in self.needed or not own.issuperset(self.readers(v))]
        if not outputs:
            return None
        reads = dict.fromkeys(v for node in nodes for v in (*node.inputs, *captured_by(node)) if v is not None)
        inside = set(made)
        outer = [v for v in reads if v not in inside]
        inputs, constants = ([v for v in outer if _is_constant(v) is kind] for kind in (False, True))
        view = ir.GraphView(
            inputs,
            outputs,
            nodes=nodes,
            initializers=constants,
            opset_imports=dict(self.model.opset_imports),
            name=name,
        )
        self.bodies[name] = ir.Model(view.clone(), ir_version=self.model.ir_version)
        return Call(name, self.slots(inputs), self.slots(outputs))

    def step(self, node: ir.Node, path: str) -> Step:
        if is_branch(node):
            return self.branch(branch_site(node), f"{path}/{_label(node)}")
        if is_loop(node):
            return self.loop(loop_site(node), f"{path}/{_label(node)}")
        attributes = {name: a.as_int() for name, a in node.attributes.items() if a.type == ir.AttributeType.INT}
        return ListStep(node.op_type, self.slots(node.inputs), self.slots(node.outputs), attributes)

    def branch(self, site: BranchSite, path: str) -> Branch:
        mark = marked(site.node)
        if mark is not None:
            self.sites[path] = mark
        sides = [
            self.block(graph, f"{path}/{side}", graph.outputs)
            for graph, side in zip(site.branches, ("then", "else"), strict=True)
        ]
        return Branch(path, self.slot(site.predicate), sides[0], sides[1], self.slots(site.node.outputs))

    def loop(self, site: LoopSite, path: str) -> Repeat:
        body = self.block(site.body, f"{path}/body", ())
        carries = [CarryStep(*(self.slot(v) for v in (c.initial, c.entry, c.exit, c.final))) for c in site.carries]
        slices = [SliceStep(self.slot(s.source), self.slot(s.slice), s.axis, s.reverse) for s in site.inputs]
        stacks = [
            StackStep(self.slot(s.element), self.slot(s.stacked), s.axis, s.reverse, *_row(s.element))
            for s in site.outputs
        ]
        return Repeat(
            path, body, tuple(carries), tuple(slices), tuple(stacks),
            limit=self.slot(site.limit),
            start=self.slot(site.start),
            index=self.entry(site.index),
            predicate=self.entry(site.predicate),
            proceed="" if site.is_scan or goes_on(site) else self.slot(site.proceed),
        )  # fmt: skip

    def entry(self, value: ir.Value | None) -> str:
        """The name of what the host gives an iteration; "" where nobody reads it."""
        return self.slot(value) if value is not None and (self.readers(value) or value in self.needed) else ""

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that read ``value``; copies are none."""
        return [node for node in value.consumers() if node.outputs[0] not in self.copies]


def _is_copy(node: ir.Node) -> bool:
    return node.op_type == "Identity" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _name(value: ir.Value) -> str:
    assert value.name, "every value has a name: the model is normalised"
    return value.name


def _label(node: ir.Node) -> str:
    return (node.name or node.outputs[0].name or node.op_type).strip("/").replace("/", ".")


def _row(element: ir.Value) -> tuple[str, tuple[int, ...]]:
    """Element type and dimensions of a row; a dimension that is not a number is 0, as in ONNX Runtime's empty stack."""
    assert element.dtype is not None, "a stacked value is a tensor of known type"
    dims = () if element.shape is None else element.shape.dims
    return type_name(element.dtype), tuple(d if isinstance(d, int) else 0 for d in dims)
