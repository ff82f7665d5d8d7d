"""A pass over the nodes of one operator that a transformation added, at every depth."""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence
from typing import ClassVar

import onnx_ir as ir

from onnx_cfad.graph.walk import nodes_of


class AddedNodesPass(ir.passes.InPlacePass):
    """Visits the nodes of ``operator`` once, in order; nodes of the original stay as they are.

    Args:
        kept: Nodes to leave alone, and constants whose numbers may be replaced: weights.
        nodes: The nodes to choose from, where they are known: those of ``nodes_of``.
    """

    operator: ClassVar[str]

    def __init__(self, kept: Collection[ir.Node | ir.Value], nodes: Sequence[ir.Node] | None = None) -> None:
        super().__init__()
        self._kept, self._nodes = kept, nodes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites once."""
        nodes = nodes_of(model.graph) if self._nodes is None else self._nodes
        added = [node for node in nodes if node.op_type == self.operator and node not in self._kept]
        return ir.passes.PassResult(model, sum(map(self.rewrite, added)) > 0)

    @abc.abstractmethod
    def rewrite(self, node: ir.Node) -> bool:
        """Changes or replaces ``node``; whether it did."""
