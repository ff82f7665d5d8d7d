"""Copies of primal nodes in another scope, for values that the reverse pass computes again."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.graph.straight_through import keep_mark
from onnx_cfad.names import Namer

Copies = dict[ir.Graph, ir.Graph]


def copy_node(node: ir.Node, mapping: dict[ir.Value, ir.Value], namer: Namer, copies: Copies | None = None) -> ir.Node:
    """A copy of ``node`` under fresh names.

    Inputs are replaced by ``mapping`` (values that it lacks are shared); outputs, also those inside subgraphs, are
    entered into it. Subgraphs are copied at every depth, and entered into ``copies`` with their originals.
    """
    new = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else mapping.get(value, value) for value in node.inputs],
        [_copy_attribute(attribute, mapping, namer, copies) for attribute in node.attributes.values()],
        num_outputs=len(node.outputs),
        overload=node.overload,
        name=namer.fresh(f"replay/{node.name or node.op_type}"),
        metadata_props=dict(node.metadata_props),
    )
    for old, copy in zip(node.outputs, new.outputs, strict=True):
        _like(copy, old, namer)
        mapping[old] = copy
    keep_mark(new, node)
    return new


def copy_nodes(
    nodes: Sequence[ir.Node], mapping: dict[ir.Value, ir.Value], namer: Namer, copies: Copies | None = None
) -> list[ir.Node]:
    """Copies of ``nodes`` in order; see ``copy_node``."""
    return [copy_node(node, mapping, namer, copies) for node in nodes]


def copy_graph(
    graph: ir.Graph, mapping: dict[ir.Value, ir.Value], namer: Namer, copies: Copies | None = None
) -> ir.Graph:
    """A copy of a subgraph under fresh names; values from outside it go through ``mapping``."""
    inputs = [_copied(value, mapping, namer) for value in graph.inputs]
    initializers = [_copied(value, mapping, namer) for value in graph.initializers.values()]
    nodes = copy_nodes(list(graph), mapping, namer, copies)
    outputs = [mapping.get(value, value) for value in graph.outputs]
    name = namer.fresh(f"replay/{graph.name or 'graph'}")
    new = ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=name)
    if copies is not None:
        copies[new] = graph
    return new


def _copy_attribute(
    attribute: ir.Attr, mapping: dict[ir.Value, ir.Value], namer: Namer, copies: Copies | None
) -> ir.Attr:
    if attribute.type != ir.AttributeType.GRAPH or attribute.is_ref():
        return attribute
    return ir.AttrGraph(attribute.name, copy_graph(attribute.as_graph(), mapping, namer, copies))


def _copied(value: ir.Value, mapping: dict[ir.Value, ir.Value], namer: Namer) -> ir.Value:
    new = ir.Value(const_value=value.const_value)
    _like(new, value, namer)
    mapping[value] = new
    return new


def _like(new: ir.Value, old: ir.Value, namer: Namer) -> None:
    new.name, new.type = namer.fresh(f"replay/{old.name}") if old.name else "", old.type
    new.shape = old.shape
