"""The stand-in of a loop that is run backwards implicitly: what its reverse pass is made from, in the forward graph.

An If behind the loop, which nothing reads. Its then-branch runs the body once more from the loop's results, its
else-branch runs the loop again from the beginning. Analyses see both as they see everything; the reverse pass takes
them out, and no stand-in is left in a finished model.

    met ? { entering = Identity (results) ... body ... } : { Loop (trips) ... }
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import scopes_of

MARK = "onnx_cfad_stand_in"
"""The attribute that marks a stand-in; its value is the number of results."""


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A stand-in.

    Attributes:
        node: The If.
        predicate: Whether the loop converged by its own tolerance.
        results: The results of the loop that it stands for.
        once_more: The graph that runs the body once more; its outputs are what ``results`` then become.
        again: The graph that runs the loop again; its outputs equal ``results``.
    """

    node: ir.Node
    predicate: ir.Value
    results: tuple[ir.Value, ...]
    once_more: ir.Graph
    again: ir.Graph


def is_stand_in(node: ir.Node) -> bool:
    """Whether ``node`` is a stand-in."""
    return is_branch(node) and MARK in node.attributes


def stand_in(node: ir.Node) -> StandIn:
    """The stand-in ``node`` as it stands now."""
    site = branch_site(node)
    count = node.attributes[MARK].as_int()
    entering = [inner for inner, _ in zip(site.then_branch, range(count), strict=False)]
    results = [value for value in (inner.inputs[0] for inner in entering) if value is not None]
    return StandIn(node, site.predicate, tuple(results), site.then_branch, site.else_branch)


def stand_in_of(loop: ir.Node) -> StandIn | None:
    """The stand-in of a loop, if it has one."""
    graph = loop.graph
    for node in graph if graph is not None else ():
        if is_stand_in(node):
            found = stand_in(node)
            if found.results and found.results[0].producer() is loop:
                return found
    return None


def remove_stand_ins(graph: ir.Graph) -> None:
    """Takes every stand-in out of ``graph`` and its subgraphs."""
    for inner, nodes in scopes_of(graph):
        for node in nodes:
            if node.op_type == "If" and is_stand_in(node) and not any(output.uses() for output in node.outputs):
                inner.remove(node, safe=True)
