"""Scopes: every value that is read is defined, once, before its use; names become unique over all scopes."""

from __future__ import annotations

import copy
import dataclasses
import graphlib
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.serde import TensorProtoTensor

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.walk import graphs_of, nodes_of
from onnx_cfad.names import Namer

MAX_DEPTH = 64
"""Subgraphs inside subgraphs; real models stay below ten."""

AUTHOR_NAME = "onnx_cfad.author_name"
"""Key in a value's ``meta`` of the name that it had before names became unique."""

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

REGION_NAMES = {"then_branch": "then", "else_branch": "else"}


@dataclasses.dataclass(frozen=True)
class _Scope:
    """One graph, where it is, what it defines, and the scope around it.

    Attributes:
        graph: The graph.
        path: ``main/loop_0/body``, for messages.
        around: The enclosing scope.
        in_function: Attributes may refer to attributes of the function.
        own: The values that the graph defines.
    """

    graph: ir.Graph
    path: str
    around: _Scope | None
    in_function: bool
    own: frozenset[ir.Value]

    def sees(self, value: ir.Value) -> bool:
        """Whether the value is defined here or around here."""
        return value in self.own or (self.around is not None and self.around.sees(value))

    def sees_name(self, name: str | None) -> bool:
        """Whether a value of that name is defined here or around here."""
        return any(value.name == name for value in self.own) or (
            self.around is not None and self.around.sees_name(name)
        )


def subgraphs_of(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """The subgraphs of a node with the attribute each belongs to, in order."""
    found: list[tuple[str, ir.Graph]] = []
    for name, attribute in node.attributes.data.items():
        if attribute.value is None:
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            found.append((name, attribute.value))
        elif attribute.type is ir.AttributeType.GRAPHS:
            found += [(f"{name}_{index}", graph) for index, graph in enumerate(attribute.value)]
    return found


def check_depth(graph: ir.Graph, where: str) -> None:
    """Refuses subgraphs nested more than ``MAX_DEPTH`` deep, and attributes without a value, without recursion.

    Raises:
        ModelError: The nesting is too deep, or an attribute (a subgraph, say) has no value.
    """
    pending = [(graph, 0, where)]
    while pending:
        inner, depth, path = pending.pop()
        if depth > MAX_DEPTH:
            raise ModelError(where, f"subgraphs are nested more than {MAX_DEPTH} deep", "Nest fewer.")
        for node in inner:
            holds_graphs = False
            for name, attribute in node.attributes.data.items():
                if attribute.value is None and (not attribute.is_ref() or attribute.type in _GRAPHS):
                    raise ModelError(_below(path, node), f"attribute '{name}' has no value", _REMEDY)
                holds_graphs = holds_graphs or attribute.type in _GRAPHS
            if holds_graphs:
                place = _below(path, node)
                children = subgraphs_of(node)
                pending.extend((child, depth + 1, f"{place}/{REGION_NAMES.get(k, k)}") for k, child in children)


def _below(path: str, node: ir.Node) -> str:
    """The path of what ``node`` holds, in the graph at ``path``."""
    return f"{path}/{str(node.name or node.op_type).strip('/')}"


def check_definitions(graph: ir.Graph, where: str, *, in_function: bool = False) -> None:
    """Refuses a graph in which a value is undefined, is defined twice in one scope, or is not made where it must be.

    Nodes that are out of order are put in order.

    Args:
        graph: A main graph or the graph of a function.
        where: Its name, for messages.
        in_function: Whether attributes may refer to attributes of the function.

    Raises:
        ModelError: The graph is invalid, or has a cycle.
    """
    if not _check_graph(graph, where, None, in_function):
        try:
            graph.sort()
        except ValueError as error:
            raise ModelError(
                where, _describe_cycle(graph), "A graph must be free of cycles; a Loop repeats."
            ) from error


def _check_graph(graph: ir.Graph, path: str, around: _Scope | None, in_function: bool) -> bool:
    """Whether the nodes of the graph, and of those inside it, are in order."""
    scope = _Scope(graph, path, around, in_function, _definitions(graph, path))
    ready = {value for value in scope.own if value.producer() is None}
    ordered = True
    for node in graph:
        _check_node(scope, node)
        inner_graphs = subgraphs_of(node)
        for name, inner in inner_graphs:
            inner_path = f"{_below(path, node)}/{REGION_NAMES.get(name, name)}"
            ordered &= _check_graph(inner, inner_path, scope, in_function)
        read = _read_by(node) if inner_graphs else node.inputs
        ordered &= all(value in ready for value in read if value in scope.own)
        ready.update(node.outputs)
    for output in graph.outputs:
        _check_output(scope, output)
    return ordered


def _definitions(graph: ir.Graph, path: str) -> frozenset[ir.Value]:
    """What a graph defines; no name twice."""
    names: set[str] = set()
    values = _values_of(graph)
    for text in (*(v.name for v in values), *(t for node in graph for t in (node.name, node.op_type, node.domain))):
        if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelError(path, f"the name {text[:40]!r} is not valid UTF-8", "Rename it.")
    for value in values:
        if value.name in names:
            raise ModelError(path, f"{value.name!r} is defined twice in one scope", "Give each value its own name.")
        names.add(value.name or "")
        names.discard("")
    for value in graph.initializers.values():
        if value.const_value is None:
            raise ModelError(path, f"initializer {value.name!r} has no value", _REMEDY)
    return frozenset(values)


def _check_node(scope: _Scope, node: ir.Node) -> None:
    for value in node.inputs:
        if value is not None and not scope.sees(value):
            what = f"input {value.name!r} is defined nowhere in this scope or around it"
            raise ModelError(_place(scope, node), what, "Export the model again, or define the value.")
    for name, attribute in node.attributes.data.items():
        if attribute.ref_attr_name is not None and not scope.in_function:
            what = f"attribute '{name}' refers to attribute '{attribute.ref_attr_name}' of a function, outside of one"
            raise ModelError(_place(scope, node), what, _REMEDY)


def _place(scope: _Scope, node: ir.Node) -> str:
    return f"{scope.path}/{node.op_type}" + (f" {node.name!r}" if node.name else "")


def _check_output(scope: _Scope, output: ir.Value) -> None:
    if output in scope.own:
        return
    if scope.around is not None and (scope.around.sees(output) or scope.around.sees_name(output.name)):
        raise ModelError(
            scope.path,
            f"output {output.name!r} is a name of an outer scope, and nothing in this subgraph produces it",
            "A subgraph must make its outputs: pass the value through an Identity node.",
        )
    raise ModelError(scope.path, f"output {output.name!r} is produced by nothing", _REMEDY)


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Every value that a node or its subgraphs read (what the subgraphs define themselves included)."""
    yield from (value for value in node.inputs if value is not None)
    for _, graph in subgraphs_of(node):
        for inner in nodes_of(graph):
            yield from (value for value in inner.inputs if value is not None)


def _describe_cycle(graph: ir.Graph) -> str:
    for scope in graphs_of(graph):
        producers = {output: node for node in scope for output in node.outputs}
        edges = {node: [producers[v] for v in _read_by(node) if v in producers] for node in scope}
        try:
            graphlib.TopologicalSorter(edges).prepare()
        except graphlib.CycleError as error:
            names = [node.name or node.op_type for node in reversed(error.args[1])]
            return "its nodes form a cycle: " + " -> ".join(names)
    return "its nodes form a cycle through a subgraph"


def make_names_unique(model: ir.Model) -> None:
    """Gives every value and every named node a name of its own over all scopes.

    The names of values in the main graph never change. A name that an inner scope uses again gets a number, and the
    omitted outputs of a Loop get a name: ONNX Runtime 1.32 crashes on a Loop with an unnamed carry output.
    """
    scopes = graphs_of(model.graph)
    taken = {value.name for value in _values_of(model.graph) if value.name}
    namer = Namer(taken)
    for graph in scopes:
        for value in _values_of(graph) if graph is not model.graph else ():
            if value.name and not namer.reserve(value.name):
                rename(value, namer.fresh(value.name))
    for graph in scopes:
        for value in _values_of(graph):
            producer = value.producer()
            if not value.name and (producer is None or producer.op_type == "Loop"):
                value.name = namer.fresh("input" if producer is None else f"{producer.name or 'loop'}.unused")
    nodes = Namer(set())
    for node in (node for graph in scopes for node in graph):
        if node.name and not nodes.reserve(node.name):
            node.name = nodes.fresh(node.name)


def _values_of(graph: ir.Graph) -> list[ir.Value]:
    initializers = [value for value in graph.initializers.values() if not value.is_graph_input()]
    return [*graph.inputs, *initializers, *(output for node in graph for output in node.outputs)]


def rename(value: ir.Value, name: str) -> None:
    """Renames a value; a tensor it holds is copied first, because the model it was cloned from holds it too."""
    tensor = value.const_value
    if isinstance(tensor, TensorProtoTensor):
        proto = type(tensor.raw)()
        proto.CopyFrom(tensor.raw)
        value.const_value = TensorProtoTensor(proto)
    elif tensor is not None:
        value.const_value = copy.copy(tensor)
    value.meta.setdefault(AUTHOR_NAME, value.name)
    value.name = name


def check_sites(graph: ir.Graph, where: str) -> None:
    """Refuses an If, Loop or Scan whose subgraphs do not fit the node.

    Raises:
        ModelError: A subgraph is missing, or has another number of inputs or outputs than the node asks for.
    """
    for node in nodes_of(graph):
        if node.domain not in ("", "ai.onnx") or node.op_type not in _BODIES:
            continue
        place = f"{where}/{node.op_type}" + (f" {node.name!r}" if node.name else "")
        bodies = dict(subgraphs_of(node))
        for name in _BODIES[node.op_type]:
            if name not in bodies:
                raise ModelError(place, f"it has no {name}", _REMEDY)
            _check_body(node, bodies[name], f"{place}/{name}")


_REMEDY = "Export the model again."

_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}


def _check_body(node: ir.Node, body: ir.Graph, place: str) -> None:
    extra = {"If": 0, "Loop": 1, "Scan": 0}[node.op_type]
    wanted_inputs = {"If": 0, "Loop": max(2, len(node.inputs)), "Scan": len(node.inputs)}[node.op_type]
    if len(body.inputs) != wanted_inputs:
        raise ModelError(place, f"it has {len(body.inputs)} inputs, the node needs {wanted_inputs}", _REMEDY)
    if len(body.outputs) != len(node.outputs) + extra:
        raise ModelError(
            place, f"it has {len(body.outputs)} outputs, the node needs {len(node.outputs) + extra}", _REMEDY
        )
