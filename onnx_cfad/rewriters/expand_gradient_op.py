"""Gradient nodes (ai.onnx.preview.training) replaced by the graph that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.regions import captured_by
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer

DOMAIN = "ai.onnx.preview.training"

Differentiate = Callable[[ir.Model, Sequence[str]], tuple[ir.Model, Sequence[str]]]
"""A model of one output and the names to differentiate by: the gradient model, and the names of the gradients."""


Holders = Mapping[ir.Graph, ir.Node]
"""The node that each subgraph belongs to."""


class ExpandGradientOpPass(ir.passes.InPlacePass):
    """Replaces every Gradient node, in any scope, by nodes that compute it at the values of its inputs.

    Given ``c = Mul (a, b); da = Gradient <xs = ["a"], zs = ["b"], y = "c"> (a, b)``, the result is
    ``c = Mul (a, b); da = Expand (...); ...``. The cotangent of ``y`` is 1 in every element. Where the node's inputs
    are the tensors that it names, what leads to ``y`` is used again, so that random operators are drawn once; else it
    is computed anew from the inputs. A later Gradient node may differentiate what an earlier one gave.

    Args:
        differentiate: Gives the gradient model.
        infer: Writes types and shapes on the values of a model.
        name_of: The name that the author of the model gave a value.
    """

    def __init__(
        self, differentiate: Differentiate, infer: Callable[[ir.Model], object], name_of: Callable[[ir.Value], str]
    ) -> None:
        super().__init__()
        self.differentiate = differentiate
        self.infer = infer
        self.name_of = name_of

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands the nodes in the order of their scopes.

        Raises:
            ModelError: A node names a tensor that its scope lacks, or has too few inputs.
        """
        found = [node for node in nodes_of(model.graph) if (node.domain, node.op_type) == (DOMAIN, "Gradient")]
        for node in found:
            self.infer(model)
            self._expand(model, node)
        return ir.passes.PassResult(model, modified=bool(found))

    def _expand(self, model: ir.Model, node: ir.Node) -> None:
        holders = {graph: owner for owner in nodes_of(model.graph) for graph in subgraphs_of(owner)}
        xs, zs = (self._named(node, name, holders) for name in ("xs", "zs"))
        y = self._value(node, node.attributes.get_string("y", ""), holders)
        free = [*xs, *zs]
        given = [value for value in node.inputs if value is not None]
        if len(given) != len(free):
            raise _refusal(node, f"it has {len(given)} inputs, expected {len(free)}, one for each of xs and zs")
        cut = _Cut(free, y, holders)
        gradient, names = self.differentiate(cut.model(model), [x.name or "" for x in xs])
        places: dict[str, ir.Value] = {value.name or "": value for value in cut.constants}
        places |= {value.name or "": value for value in cut.leaves}
        places |= {value.name or "": to for value, to in zip(free, given, strict=True)}
        known = cut.nodes if given == free else []
        results = _spliced(node, gradient, places, known, Namer.of_model(model))
        graph = node.graph
        assert graph is not None
        pairs = [(out, results[name]) for out, name in zip(node.outputs, names, strict=False) if out.name]
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], [], [out for out, _ in pairs], [value for _, value in pairs]
        )

    def _named(self, node: ir.Node, attribute: str, holders: Holders) -> list[ir.Value]:
        names = node.attributes.get_strings(attribute, ())
        return [self._value(node, name, holders) for name in names]

    def _value(self, node: ir.Node, name: str, holders: Holders) -> ir.Value:
        """The value called ``name`` in the scope of ``node``."""
        for graph in _enclosing(node, holders):
            made = (output for inner in graph for output in inner.outputs)
            for value in (*graph.inputs, *graph.initializers.values(), *made):
                if self.name_of(value) == name:
                    return value
        raise _refusal(node, f"it names the tensor '{name}', which its scope has not")


def _refusal(node: ir.Node, what: str) -> ModelError:
    title = f"Gradient '{node.name}'" if node.name else "Gradient"
    return ModelError(title, what, "Check its attributes xs, zs and y.")


class _Cut:
    """The nodes that lead from ``free`` values to ``y``, in order, and what else enters them.

    Attributes:
        nodes: In the order of their scopes, outer ones first.
        leaves: What enters the nodes and is computed elsewhere, or fed.
        constants: Initializers that enter them.
    """

    def __init__(self, free: Sequence[ir.Value], y: ir.Value, holders: Holders) -> None:
        self.free = free
        self.y = y
        needed: dict[ir.Node, None] = {}
        entering: dict[ir.Value, None] = {}
        pending = [y]
        while pending:
            value = pending.pop()
            maker = value.producer()
            if value in free or maker is None:
                entering[value] = None
            elif maker not in needed:
                needed[maker] = None
                pending += [v for v in (*maker.inputs, *captured_by(maker)) if v is not None]
        self.nodes = sorted(needed, key=_position(needed, holders))
        others = [value for value in entering if value not in free]
        self.constants = [value for value in others if value.is_initializer() and not value.is_graph_input()]
        self.leaves = [value for value in others if value not in self.constants]

    def model(self, host: ir.Model) -> ir.Model:
        """A model of its own of the nodes: free values and leaves in, ``y`` out."""
        inputs = list(dict.fromkeys((*self.free, *self.leaves)))
        view = ir.GraphView(inputs, [self.y], nodes=self.nodes, initializers=self.constants, name="differentiated")
        graph = view.clone()
        graph.opset_imports.update(host.opset_imports)
        return ir.Model(graph, ir_version=host.ir_version)


def _position(nodes: dict[ir.Node, None], holders: Holders) -> Callable[[ir.Node], tuple[int, int]]:
    """How deep the scope of a node is, and where it stands there."""
    graphs = list(dict.fromkeys(node.graph for node in nodes))
    index = {node: place for graph in graphs if graph is not None for place, node in enumerate(graph)}
    return lambda node: (sum(1 for _ in _enclosing(node, holders)), index[node])


def _enclosing(node: ir.Node, holders: Holders) -> Iterator[ir.Graph]:
    """The graph of ``node`` and those around it, the innermost first."""
    while isinstance(node.graph, ir.Graph):
        yield node.graph
        if node.graph not in holders:
            return
        node = holders[node.graph]


def _spliced(
    place: ir.Node, gradient: ir.Model, known: dict[str, ir.Value], again: Sequence[ir.Node], namer: Namer
) -> dict[str, ir.Value]:
    """Moves the nodes of ``gradient`` before ``place``; gives its outputs by name.

    Inputs and constants become the ``known`` values of their names, nodes that do what one of ``again`` does that one.
    """
    source, host = gradient.graph, place.graph
    assert host is not None
    names = [output.name or "" for output in source.outputs]
    for value in (*source.inputs, *source.initializers.values()):
        target = known.get(value.name or "")
        if target is None:
            value.name = namer.fresh(value.name or "constant")
            continue
        ir.convenience.replace_all_uses_with(value, target, replace_graph_outputs=True)
    added = [value for value in source.initializers.values() if value.name not in known and value.uses()]
    results = list(source.outputs)
    source.outputs.clear()
    twins = {_signature(node): node for node in again if not list(subgraphs_of(node))}
    for node in list(source):
        source.remove(node)
        twin = twins.get(_signature(node))
        if twin is not None and not list(subgraphs_of(node)):
            for old, new in zip(node.outputs, twin.outputs, strict=True):
                ir.convenience.replace_all_uses_with(old, new)
                results = [new if value is old else value for value in results]
            continue
        _rename(node, namer)
        host.insert_before(place, node)
    for value in added:
        source.initializers.pop(value.name or "", None)
        _adopt(host, value)
    return dict(zip(names, results, strict=True))


def _adopt(graph: ir.Graph | ir.Function, value: ir.Value) -> None:
    assert isinstance(graph, ir.Graph)
    graph.initializers.add(value)


def _signature(node: ir.Node) -> tuple[object, ...]:
    attributes = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
    return (node.domain, node.op_type, tuple(map(id, node.inputs)), len(node.outputs), attributes)


def _rename(node: ir.Node, namer: Namer) -> None:
    """Gives the node, its outputs and everything inside its subgraphs names that are new in the host."""
    node.name = namer.fresh(node.name or node.op_type)
    for output in node.outputs:
        if output.name:
            output.name = namer.fresh(output.name)
    for graph in subgraphs_of(node):
        graph.name = namer.fresh(graph.name or "graph")
        for value in (*graph.inputs, *graph.initializers.values()):
            value.name = namer.fresh(value.name or "value")
        for inner in graph:
            _rename(inner, namer)
