"""Every node and every graph below a graph, in graph order, an owner in front of what it holds.

The lists are complete when they are given: what is walked may be changed meanwhile. Several times as fast as onnx_ir's
iterators, which make a generator for each graph.
"""

from __future__ import annotations

import onnx_ir as ir

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def subgraphs_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs among a node's attributes, in order."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is _GRAPH and attribute.value is not None:
            found.append(attribute.value)
        elif kind is _GRAPHS and attribute.value is not None:
            found.extend(attribute.value)
    return found


def nodes_of(graph: ir.Graph | ir.Function) -> list[ir.Node]:
    """The nodes of ``graph`` and of all graphs inside it."""
    found: list[ir.Node] = []
    _add_nodes(graph, found)
    return found


def operators_of(graph: ir.Graph) -> frozenset[str]:
    """The names of the operators in ``graph`` and in all graphs inside it, of any domain."""
    return frozenset([node.op_type for node in nodes_of(graph)])


def graphs_of(graph: ir.Graph) -> list[ir.Graph]:
    """``graph`` and all graphs inside it."""
    found = [graph]
    _add_graphs(graph, found)
    return found


def parts_of(graph: ir.Graph) -> frozenset[ir.Node | ir.Value]:
    """The nodes and the initializers of ``graph`` and of all graphs inside it."""
    scopes = scopes_of(graph)
    held = [value for inner, _ in scopes for value in inner.initializers.data.values()]
    return frozenset([*(node for _, nodes in scopes for node in nodes), *held])


def scopes_of(graph: ir.Graph) -> list[tuple[ir.Graph, list[ir.Node]]]:
    """``graph`` and all graphs inside it, each with the nodes that are in it and in no graph inside."""
    found: list[tuple[ir.Graph, list[ir.Node]]] = []
    _add_scopes(graph, found)
    return found


def structure(graph: ir.Graph) -> list[object]:
    """What ``graph`` is made of, in order: two that are equal say that nothing was put in, taken out or rewired."""
    found: list[object] = []
    for inner, nodes in scopes_of(graph):
        found += (inner, *inner.inputs, *inner.initializers.data.values(), *inner.outputs)
        for node in nodes:
            found.append(node)
            found += node.inputs
    return found


def _add_nodes(graph: ir.Graph | ir.Function, found: list[ir.Node]) -> None:
    for node in graph:
        found.append(node)
        for attribute in node.attributes.data.values():
            kind = attribute.type
            if kind is _GRAPH or kind is _GRAPHS:
                for inner in subgraphs_of(node):
                    _add_nodes(inner, found)
                break


def _add_graphs(graph: ir.Graph, found: list[ir.Graph]) -> None:
    for node in graph:
        for attribute in node.attributes.data.values():
            kind = attribute.type
            if kind is _GRAPH or kind is _GRAPHS:
                for inner in subgraphs_of(node):
                    found.append(inner)
                    _add_graphs(inner, found)
                break


def _add_scopes(graph: ir.Graph, found: list[tuple[ir.Graph, list[ir.Node]]]) -> None:
    nodes = list(graph)
    found.append((graph, nodes))
    for node in nodes:
        for attribute in node.attributes.data.values():
            kind = attribute.type
            if kind is _GRAPH or kind is _GRAPHS:
                for inner in subgraphs_of(node):
                    _add_scopes(inner, found)
                break
