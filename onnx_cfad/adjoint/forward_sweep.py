"""The forward sweep: nodes in order, tangents of what enters a graph to tangents of its results.

What gives a tangent stands right behind the primal node, so that no primal value is kept for it longer than it is.
Through a Loop or Scan tangents are carried along beside the values, an If hands them out beside its results: no tape.
A loop that iterates to a fixed point is one operator: its tangents solve a linear system.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.directions import refuse_draws
from onnx_cfad.adjoint.expr import Builder, Expr
from onnx_cfad.adjoint.forward_branch import push_through_branch
from onnx_cfad.adjoint.forward_loop import push_through_loop
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.implicit_tangent import push_through_fixed_point
from onnx_cfad.adjoint.replay import copy_node
from onnx_cfad.adjoint.tangent import push_forward
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.errors import CfadError
from onnx_cfad.graph.activity import Activity
from onnx_cfad.graph.faults import Blamed, placed
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch, is_loop
from onnx_cfad.graph.stand_in import is_stand_in, stand_in_of


@dataclasses.dataclass(frozen=True)
class ForwardSweep:
    """What the sweep knows in every scope.

    Attributes:
        activity: The values that a derivative passes through.
        cut: Values whose tangent may be exactly zero because a selecting operator cut it off.
        sites: Paths for messages.
        tangents: The tangents found so far, in the scope of their primal values.
        implicit: How the loops that have a stand-in are differentiated implicitly, by body.
    """

    activity: Activity
    cut: set[ir.Value]
    sites: ControlFlowGraph
    tangents: dict[ir.Value, ir.Value]
    implicit: dict[ir.Graph, Implicit] = dataclasses.field(default_factory=dict[ir.Graph, Implicit])

    def run(self, graph: ir.Graph, builder: Builder, *, apart: bool = False) -> None:
        """Sweeps over the nodes of ``graph`` and puts what gives their tangents, recorded with ``builder``, there.

        Args:
            graph: The graph.
            builder: Records in its scope.
            apart: Sites of ``graph`` give primal results without tangents, and a copy of each gives the tangents.
        """
        for node in list(graph):
            if is_stand_in(node) or not any(map(self.activity.is_active, node.outputs)):
                continue
            if is_loop(node) or is_branch(node):
                last = self._site_apart(node, builder) if apart else self._site(node, builder)
            else:
                last = self._operator(node, builder)
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
            if is_branch(node):
                return push_through_branch(self, node, builder)
            implicit = stand_in_of(node) is not None
            return push_through_fixed_point(self, node, builder) if implicit else push_through_loop(self, node, builder)

    def _site_apart(self, node: ir.Node, builder: Builder) -> ir.Node:
        """As ``_site``; the primal results come from a copy made before, so that they depend on no tangent."""
        if stand_in_of(node) is not None:
            return self._site(node, builder)  # a fixed point gives its results without tangents anyway
        refuse_draws(node, self.sites.path_of(node))
        copy, names = copy_node(node, {}, builder.namer), [output.name for output in node.outputs]
        graph = node.graph
        assert graph is not None
        graph.insert_before(node, [copy])
        extended = self._site(node, builder)
        results = {output.name: output for output in extended.outputs}
        for name, primal in zip(names, copy.outputs, strict=True):
            if name:
                self._primal_from(results[name], primal, builder)
        copy.name, extended.name = extended.name, copy.name
        return extended

    def _primal_from(self, result: ir.Value, primal: ir.Value, builder: Builder) -> None:
        """Makes ``primal`` what everybody reads in place of ``result``, whose name and tangent it takes over."""
        ir.convenience.replace_all_uses_with(result, primal, replace_graph_outputs=True)
        primal.name, result.name = result.name, builder.namer.fresh(f"{result.name}.again")
        self.activity.replaced(result, primal)
        if result in self.cut:
            self.cut.add(primal)
        if result in self.tangents:
            self.tangents[primal] = self.tangents[result]

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
