"""The forward sweep: nodes in order, tangents of what enters a graph to tangents of its results.

What gives a tangent stands right behind the primal node, so that no primal value is kept for it longer than it is.
Through a Loop or Scan tangents are carried along beside the values, an If hands them out beside its results: no tape.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr
from onnx_cfad.adjoint.forward_branch import push_through_branch
from onnx_cfad.adjoint.forward_loop import push_through_loop
from onnx_cfad.adjoint.tangent import push_forward
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.errors import CfadError
from onnx_cfad.graph.activity import Activity
from onnx_cfad.graph.faults import Blamed, placed
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch, is_loop


@dataclasses.dataclass(frozen=True)
class ForwardSweep:
    """What the sweep knows in every scope.

    Attributes:
        activity: The values that a derivative passes through.
        cut: Values whose tangent may be exactly zero because a selecting operator cut it off.
        sites: Paths for messages.
        tangents: The tangents found so far, in the scope of their primal values.
    """

    activity: Activity
    cut: set[ir.Value]
    sites: ControlFlowGraph
    tangents: dict[ir.Value, ir.Value]

    def run(self, graph: ir.Graph, builder: Builder) -> None:
        """Sweeps over the nodes of ``graph`` and puts what gives their tangents, recorded with ``builder``, there."""
        for node in list(graph):
            if not any(map(self.activity.is_active, node.outputs)):
                continue
            last = self._site(node, builder) if is_loop(node) or is_branch(node) else self._operator(node, builder)
            if builder.nodes:
                graph.insert_after(last, builder.nodes)
                builder.nodes = []

    def close(self, graph: ir.Graph, builder: Builder) -> None:
        """Puts what ``builder`` has recorded since, and its constants, into ``graph``."""
        builder.append_to(graph)
        builder.nodes, builder.initializers = [], []

    def tangent(self, value: ir.Value, builder: Builder) -> Expr | None:
        """The tangent of a value of this scope or of one around it; None for zero."""
        found = self.tangents.get(value)
        return None if found is None or not self.activity.is_active(value) else builder.expr(found)

    def tangent_or_zero(self, value: ir.Value, builder: Builder) -> Expr:
        """The tangent of a value; zeros in its shape where there is none."""
        found = self.tangent(value, builder)
        return zero_cotangent(builder.expr(value)) if found is None else found

    def _site(self, node: ir.Node, builder: Builder) -> ir.Node:
        with Blamed(node, "it cannot be run forwards with tangents", path=self.sites.path_of(node)):
            return push_through_loop(self, node, builder) if is_loop(node) else push_through_branch(self, node, builder)

    def _operator(self, node: ir.Node, builder: Builder) -> ir.Node:
        given = [None if value is None else self.tangent(value, builder) for value in node.inputs]
        guard = any(value in self.cut for value in node.inputs)
        try:
            with Blamed(node, "its JVP rule fails"):
                results = push_forward(node, given, builder, guard=guard)
        except CfadError as error:
            raise placed(self.sites.path_of(node), node, error) from error
        for output, result in zip(node.outputs, results, strict=True):
            if result is not None and self.activity.is_active(output):
                self.tangents[output] = result.value
        return node
