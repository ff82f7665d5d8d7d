"""Writes an If as straight-line code: both branches run, and its predicate selects between their results.

What a branch reads enters it through a Where that gives 1 in the branch that is not taken (the "double where"), and
what it makes leaves it through another. So whatever becomes NaN or Inf in the branch that was not taken stays there: no
value leaves it, and no cotangent or tangent of any order, because the derivative of a Where selects too. Indices and
integer divisors are guarded where they are used, since the runtime fails on bad ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.maskable import RANGED
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.fold_branch import take_apart

_SELECTED = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)  # integers that ONNX Runtime's Where takes


@dataclasses.dataclass(frozen=True)
class Predicated:
    """What stands where an If was.

    Attributes:
        guards: The Where nodes that values enter a branch through, each with the value that it guards.
        selections: The nodes that select between the results of the branches.
        handed_on: The values that a branch without guards, one that only hands values on, reads and makes.
    """

    guards: dict[ir.Node, ir.Value]
    selections: tuple[ir.Node, ...]
    handed_on: frozenset[ir.Value] = frozenset()


class PredicateBranchPass(ir.passes.InPlacePass):
    """Replaces Ifs by both their branches and a Where for each result, inner ones first.

    Given ``y = If (p) <then: a = Log (x), else: b = Neg (x)>``, the result is ``u = Where (p, x, 1)``,
    ``a = Log (u)``, ``v = Where (p, 1, x)``, ``b = Neg (v)``, ``y = Where (p, a, b)``.

    Args:
        nodes: The Ifs; see ``graph.maskable.why_not_masked`` for those that may be named here.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        super().__init__()
        self._nodes = frozenset(nodes)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Predicates the nodes that are in ``model``."""
        namer = Namer.of_model(model)
        found = [node for node in nodes_of(model.graph) if node in self._nodes and is_branch(node)]
        for node in reversed(found):
            predicate_branch(node, namer)
        return ir.passes.PassResult(model, bool(found))


def predicate_branch(node: ir.Node, namer: Namer) -> Predicated:
    """Puts both branches of the If ``node``, and the selection, in its place."""
    return _Predication(node, namer).run()


def drop_guards(guards: Mapping[ir.Node, ir.Value], kept: Iterable[ir.Value]) -> None:
    """Removes guards of constants, which no derivative passes through and which are not NaN; not those in ``kept``."""
    wanted = set(kept)
    for guard, value in guards.items():
        node = value.producer()
        constant = (value.is_initializer() and not value.is_graph_input()) or (
            node is not None and node.op_type == "Constant"
        )
        if constant and value not in wanted and guard.graph is not None:
            ir.convenience.replace_all_uses_with(guard.outputs[0], value)
            guard.graph.remove(guard, safe=True)


class _Predication:
    """One If on its way to straight-line code; ``nodes`` collects what will stand in its place."""

    def __init__(self, node: ir.Node, namer: Namer) -> None:
        assert node.graph is not None
        self.node, self.namer, self.graph = node, namer, node.graph
        self.nodes: list[ir.Node] = []
        self.guards: dict[ir.Node, ir.Value] = {}
        self.handed_on: set[ir.Value] = set()
        self.constants: dict[tuple[float, ir.DataType], ir.Value] = {}
        self.predicate = self.scalar(branch_site(node).predicate)

    def run(self) -> Predicated:
        outputs, site = list(self.node.outputs), branch_site(self.node)
        sides = [self.side(branch, taken=branch is site.then_branch) for branch in site.branches]
        start = len(self.nodes)
        results = [self.selected(a, b) for a, b in zip(*sides, strict=True)]
        selections = tuple(self.nodes[start:])
        ir.convenience.replace_nodes_and_values(self.graph, self.node, [self.node], self.nodes, outputs, results)
        return Predicated(self.guards, selections, frozenset(self.handed_on))

    def side(self, branch: ir.Graph, *, taken: bool) -> list[ir.Value]:
        """Moves a branch out, guarded; ``taken``: it is the one that runs where the predicate holds."""
        part = take_apart(branch)
        for initializer in part.initializers:
            self.graph.initializers.add(initializer)
        inside = [inner for node in part.nodes for inner in _with_subgraphs(node)]
        safe = _guards_needed(part.nodes)
        own = {output for node in inside if node.op_type != "Constant" for output in node.outputs}
        inner = [graph for node in inside for graph in subgraphs_of(node)]
        own |= {value for graph in inner for value in (*graph.inputs, *graph.initializers.values())}
        if not safe:
            self.handed_on.update(filter(_is_real, (*_reads(inside), *part.results)))
        entering = [v for v in _reads(inside) if safe and v not in own and _is_real(v)]
        guarded: dict[ir.Value, ir.Value] = {}
        made = {output: node for node in part.nodes for output in node.outputs}
        before: list[ir.Node] = [made[v] for v in entering if v in made]  # Constants of the branch itself
        self.nodes += before
        for value in entering:
            guarded[value] = self.guard(value, 1, taken=taken)
            self.guards[self.nodes[-1]] = value
        for node in inside:
            for index, value in enumerate(node.inputs):
                if value is not None and value in guarded:
                    node.replace_input_with(index, guarded[value])
            for graph in subgraphs_of(node):
                graph.outputs[:] = [guarded.get(value, value) for value in graph.outputs]
        for node in part.nodes:
            if node not in before:
                self.range_guards(node, taken=taken)
        return part.results

    def range_guards(self, node: ir.Node, *, taken: bool) -> None:
        """Appends ``node``, with guards before what must be in range, at every depth."""
        for graph in subgraphs_of(node):
            for inner in list(graph):
                around = self.nodes
                self.nodes = []
                self.range_guards(inner, taken=taken)
                made, self.nodes = self.nodes[:-1], around
                graph.insert_before(inner, made)
        index, number = RANGED.get(node.op_type, (0, 0))
        value = node.inputs[index] if index and index < len(node.inputs) else None
        constant = value is not None and ir.convenience.get_const_tensor(value) is not None
        if value is not None and value.dtype is not None and value.dtype.is_integer() and not constant:
            node.replace_input_with(index, self.guard(value, number, taken=taken))
        self.nodes.append(node)

    def guard(self, value: ir.Value, number: int, *, taken: bool) -> ir.Value:
        """``value`` where its branch is taken, else ``number``."""
        assert value.dtype is not None
        safe = self.constant(number, value.dtype)
        return self.choose(value, safe, value) if taken else self.choose(safe, value, value)

    def selected(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The result of the branch that was taken."""
        return self.choose(a, b, a)

    def choose(self, a: ir.Value, b: ir.Value, like: ir.Value) -> ir.Value:
        """``a`` where the predicate holds, else ``b``; typed and shaped like ``like``."""
        dtype = like.dtype
        assert dtype is not None
        if dtype == ir.DataType.BOOL:
            first = self.record("And", [self.predicate, a], like)
            second = self.record("And", [self.record("Not", [self.predicate], self.predicate), b], like)
            return self.record("Or", [first, second], like)
        if dtype == ir.DataType.BFLOAT16 or (dtype.is_integer() and dtype not in _SELECTED):
            selected = ir.DataType.INT64 if dtype.is_integer() else ir.DataType.FLOAT
            wide = [self.cast(value, selected) for value in (a, b)]
            return self.cast(self.record("Where", [self.predicate, *wide], wide[0]), dtype)
        return self.record("Where", [self.predicate, a, b], like)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        result = self.record("Cast", [value], value, [ir.AttrInt64("to", int(dtype))])
        result.type = ir.TensorType(dtype)
        return result

    def scalar(self, predicate: ir.Value) -> ir.Value:
        """The predicate without axes: a mask of shape [1] would add an axis to a scalar."""
        if predicate.shape is not None and predicate.shape.rank() == 0:
            return predicate
        shape = self.constant_of(np.zeros(0, dtype=np.int64))
        result = self.record("Reshape", [predicate, shape], predicate)
        result.shape = ir.Shape([])
        return result

    def record(
        self, op_type: str, inputs: list[ir.Value], like: ir.Value, attributes: Iterable[ir.Attr] = ()
    ) -> ir.Value:
        node = ir.Node("", op_type, inputs, attributes, name=self.namer.fresh(f"mask/{op_type}"))
        output = node.outputs[0]
        output.name, output.type, output.shape = self.namer.fresh(f"mask/{op_type}.out"), like.type, like.shape
        self.nodes.append(node)
        return output

    def constant(self, number: float, dtype: ir.DataType) -> ir.Value:
        if (number, dtype) not in self.constants:
            self.constants[number, dtype] = self.constant_of(np.asarray(number, dtype=dtype.numpy()), dtype)
        return self.constants[number, dtype]

    def constant_of(self, array: np.ndarray, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        name = self.namer.fresh("const")
        tensor = ir.Tensor(array, dtype=dtype, name=name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=tensor.shape, const_value=tensor)
        self.graph.initializers.add(value)
        return value


def _with_subgraphs(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for graph in subgraphs_of(node):
        yield from nodes_of(graph)


def _reads(nodes: list[ir.Node]) -> list[ir.Value]:
    """What ``nodes`` and the graphs in them read, in order."""
    found = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    found.update(dict.fromkeys(v for node in nodes for graph in subgraphs_of(node) for v in graph.outputs))
    return list(found)


def _is_real(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype is not None and carries_derivative(value)


def _guards_needed(nodes: list[ir.Node]) -> bool:
    """Whether something is computed: a branch that only hands values on makes no NaN of its own."""
    return any(node.op_type not in ("Identity", "Constant") for node in nodes)
