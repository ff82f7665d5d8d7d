"""A pass that looks at every node once, inner ones first, and may write another one in its place."""

from __future__ import annotations

import abc

import onnx_ir as ir

from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer


class RewriteNodesPass(ir.passes.InPlacePass):
    """Visits the nodes of the main graph and of all subgraphs; what is written on the way is not visited."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites once."""
        return ir.passes.PassResult(model, self._graph(model.graph, Namer.of_model(model)))

    def _graph(self, graph: ir.Graph, namer: Namer) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(subgraph, namer)
            if node.domain in ("", "ai.onnx"):
                changed |= self.rewrite(node, graph, namer)
        return changed

    @abc.abstractmethod
    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Changes or replaces ``node``, of the default domain, in ``graph``; whether it did."""
