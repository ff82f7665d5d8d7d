"""Takes out of an If what both of its branches do."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.alike import alike_graphs
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.common_work import hoist_common_work
from onnx_cfad.rewriters.fold_branch import inline_branch, names_of


class MergeBranchesPass(ir.passes.InPlacePass):
    """Moves common work in front of an If, and removes an If whose branches are the same, at every depth.

    Given ``y = If (p) <then: s = Sin (x); a = Mul (s, w), else: t = Sin (x); b = Neg (t)>``, the result is
    ``s = Sin (x)`` followed by ``y = If (p) <then: a = Mul (s, w), else: b = Neg (s)>``.

    Random draws stay where they are: one draw is not two. What moves ran anyway, whichever branch was taken.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits inner Ifs first, so that what they have in common can move on."""
        namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, _graph(model.graph, namer))


def _graph(graph: ir.Graph, namer: Namer) -> bool:
    changed = False
    for node in list(graph):
        for subgraph in subgraphs_of(node):
            changed |= _graph(subgraph, namer)
        if is_branch(node):
            changed |= _merge(node, graph, namer) or hoist_common_work(node, namer)
    return changed


def _merge(node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
    site = branch_site(node)
    if not all(map(is_pure, site.then_branch)) or not alike_graphs(*site.branches):
        return False
    inline_branch(node, site.then_branch, names_of(graph), namer)
    return True
