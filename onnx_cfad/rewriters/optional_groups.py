"""Which values are one optional: what a Loop carries, an If returns and an Identity copies."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, is_loop, loop_site
from onnx_cfad.graph.walk import nodes_of

READS = ("OptionalHasElement", "OptionalGetElement")
"""The operators that read an optional."""

_Links = dict[ir.Value, list[ir.Value]]


@dataclasses.dataclass(frozen=True)
class Group:
    """Values that are the same optional, in the order in which they were reached.

    Attributes:
        members: The values.
        crosses: Those that a Loop carries or an If returns, seen from either side.
    """

    members: tuple[ir.Value, ...]
    crosses: frozenset[ir.Value]

    def is_read_only_as_optional(self, value: ir.Value) -> bool:
        """Whether nothing but reads, copies and the carries of a Loop use ``value``, and a known operator made it."""
        made = value.producer()
        known = made is None or made.op_type in ("Optional", "Identity") or value in self.crosses
        return known and all(
            use.node.op_type in (*READS, "Identity") or (value in self.crosses and is_loop(use.node))
            for use in value.uses()
        )


def groups(model: ir.Model, belongs: Callable[[ir.Value], bool]) -> Iterator[Group]:
    """The groups with a value that crosses into a scope and that ``belongs``, in graph order."""
    nodes = nodes_of(model.graph)
    crossing = [value for node in nodes if node.op_type != "Identity" for values in _same(node) for value in values]
    if not any(belongs(value) for value in crossing):
        return
    links = _linked(nodes)
    _declare(nodes)
    crosses = frozenset(crossing)
    seen: set[ir.Value] = set()
    for value in crossing:
        if value not in seen and belongs(value):
            members = _reached(value, links)
            seen.update(members)
            yield Group(tuple(members), crosses.intersection(members))


def replace(old: ir.Node, nodes: list[ir.Node], made: ir.Value) -> None:
    """Puts ``nodes`` in the place of ``old``, whose output ``made`` stands for, under its name and type."""
    given, graph = old.outputs[0], old.graph
    assert graph is not None
    made.name, made.type, made.shape = given.name, given.type, given.shape
    ir.convenience.replace_nodes_and_values(graph, old, [old], nodes, [given], [made])


def _linked(nodes: Sequence[ir.Node]) -> _Links:
    """Which values are the same value in the next scope, or copies."""
    links: _Links = defaultdict(list)
    for node in nodes:
        for values in _same(node):
            for value in values[1:]:
                links[values[0]].append(value)
                links[value].append(values[0])
    return links


def _declare(nodes: Sequence[ir.Node]) -> None:
    """Gives what leaves a Loop or an If, and what an Identity copies, the type that it has inside, or in front."""
    before = -1
    while before != (before := sum(_declared(node) for node in (*nodes, *reversed(nodes)))):
        pass


def _declared(node: ir.Node) -> int:
    """How many of the values that ``node`` links have a type now."""
    count = 0
    for values in _same(node):
        result, sources = (values[-1], values[:-1]) if node.op_type in ("Identity", "Loop") else (values[0], values[1:])
        if result.type is None:
            result.type = next((source.type for source in reversed(sources) if source.type is not None), None)
        count += result.type is not None
    return count


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
