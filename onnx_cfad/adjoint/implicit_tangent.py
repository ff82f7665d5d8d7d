"""Forward mode through a loop that converged, as one operator: the tangent system.

Where z* = f(z*, theta), the tangents satisfy dz = (df/dz) dz + (df/dtheta) dtheta: one linear solve takes the place of
tangents that are carried through all iterations. They are as exact as the solver, where carried ones would lag behind
the iterates. The tangent of the initial guess does not take part, but has to die out.

Guard and fallback are those of the reverse pass: where the loop did not converge or the map does not contract, it is
run again with tangents carried along, or the tangents are NaN. Cost: one iteration with tangents of all that is
captured, then a product with df/dz for each step of the solver, which computes the values of loops and branches inside
the map again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op, where
from onnx_cfad.adjoint.implicit_guard import converged, has_to_rest, holds, polished, relative_move, trips_of
from onnx_cfad.adjoint.linear import LinearMap, emptied, split_linear
from onnx_cfad.adjoint.replay import Copies, copy_graph
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.regions import is_branch, is_loop, label, loop_site
from onnx_cfad.graph.stand_in import stand_in_of
from onnx_cfad.solvers.choice import solve
from onnx_cfad.solvers.contraction import dies_out
from onnx_cfad.solvers.system import Apply, System

if TYPE_CHECKING:
    from onnx_cfad.adjoint.forward_sweep import ForwardSweep


def push_through_fixed_point(sweep: ForwardSweep, node: ir.Node, builder: Builder) -> ir.Node:
    """Records the tangents of the results of a loop that was prepared for it, and gives the node they stand behind."""
    return _Push(sweep, node, builder).run()


class _Push:
    """The tangents of one loop."""

    def __init__(self, sweep: ForwardSweep, node: ir.Node, builder: Builder) -> None:
        found = stand_in_of(node)
        assert found is not None, f"{label(node)} was not prepared"
        self.sweep, self.outer, self.stand_in = sweep, builder, found
        self.site = loop_site(node)
        self.adjoint = sweep.implicit[self.site.body]
        self.point = find_fixed_point(self.site)
        self.positions = [k for k, v in enumerate(found.results) if sweep.activity.is_active(v)]
        self.finals = [found.results[k] for k in self.positions]

    def run(self) -> ir.Node:
        """Enters the tangents of the results into the sweep."""
        self.pass_by()
        if self.finals:
            for final, tangent in zip(self.finals, self.tangents(), strict=True):
                tangent.value.shape = final.shape
                self.sweep.tangents[final] = tangent.value
        return self.stand_in.node

    def pass_by(self) -> None:
        """What is handed on unchanged keeps its tangent; that of a norm of the change is 0."""
        for k in self.point.invariants:
            carry = self.site.carries[k]
            tangent = self.sweep.tangent(carry.initial, self.outer)
            if tangent is not None and self.sweep.activity.is_active(carry.final):
                self.sweep.tangents[carry.final] = tangent.value

    def tangents(self) -> list[Expr]:
        """The solution of the tangent system where it holds."""
        self.linearise()
        met = self.met()
        system = System.of(self.moved, self.rhs, self.adjoint.tol, self.wide if self.map.can_widen else None)
        solution = solve(self.adjoint.solver, system, met, self.adjoint.max_iterations)
        fine = holds(solution, None if self.adjoint.fallback == "none" else met, self.rhs)
        if self.adjoint.fallback != "none":
            fine = self.forgetting(fine)
        if self.adjoint.fallback != "checkpointed":
            us = [where(fine, u, float("nan")) for u in solution.values]
            for u, final in zip(us, self.finals, strict=True):
                u.value.shape = final.shape
            return polished(self.outer, us, self.rhs, self.moved, name="tangent")
        inner = self.outer.child()
        us = [inner.expr(u.value) for u in solution.values]
        exact = inner.graph([], polished(inner, us, self.rhs, self.moved, name="tangent"), "tangent.implicit")
        kinds = [self.outer.expr(final).type for final in self.finals]
        branches = {"then_branch": exact, "else_branch": self.carried()}
        return list(self.outer.call("If", [fine], branches, types=kinds, outputs=len(kinds)))

    def linearise(self) -> None:
        """Records one more iteration with the tangents of what it captures, and df/dz as a linear map."""
        once, inner = self.copied(self.stand_in.once_more), self.outer.child()
        entries = [self.outer.input(f"{final.name}.t", final.type, final.shape).value for final in self.finals]
        by_captured = dataclasses.replace(self.sweep, tangents=dict(self.sweep.tangents))
        by_captured.run(once, inner)
        # Sites have tangents beside values: those along the state, which each step of the solver computes, stand apart.
        graphs = [once, self.copied(self.stand_in.once_more)] if _has_sites(self.stand_in.once_more) else [once]
        by_state = dataclasses.replace(self.sweep, tangents=dict(zip(self.finals, entries, strict=True)))
        by_state.run(graphs[-1], inner)
        self.leaving = [by_state.tangent(graphs[-1].outputs[k], self.outer) for k in self.positions]
        self.exits = [once.outputs[k] for k in self.positions]
        offsets = [by_captured.tangent(value, self.outer) for value in self.exits]
        nodes, constants = list[ir.Node](), list(inner.initializers)
        for graph in graphs:
            more = emptied(graph)
            nodes.extend(more[0])
            constants.extend(more[1])
        steady, moving = split_linear(nodes, entries)
        self.outer.initializers.extend(constants)
        self.outer.nodes.extend(steady)
        self.map = LinearMap(tuple(entries), tuple(moving))
        pairs = zip(offsets, self.finals, strict=True)
        self.rhs = [zero_cotangent(self.outer.expr(final)) if t is None else t for t, final in pairs]

    def moved(self, builder: Builder, us: list[Expr]) -> list[Expr]:
        """(df/dz) u at the loop's results."""
        return self.map.apply(builder, us, self.leaving, self.finals)

    def wide(self, builder: Builder) -> Apply:
        """The same of float64; ``builder`` records what makes float64 of the values at the loop's results."""
        double, leaving = self.map.widened(builder, self.leaving)
        return lambda inner, us: double.apply(inner, us, leaving, [u.value for u in us])

    def met(self) -> Expr:
        """Whether to trust that the loop converged (bool scalar)."""
        if self.adjoint.fallback == "none":
            return self.outer.constant(True)
        rests = has_to_rest(self.point, self.adjoint.fallback)
        residual = relative_move(self.outer, self.finals, self.exits) if rests else None
        return converged(self.outer, self.stand_in, residual)

    def forgetting(self, fine: Expr) -> Expr:
        """``fine`` where the tangents of the initial values die out, too.

        A map that keeps something, such as a mass, has the eigenvalue 1: its results depend on where it started. The
        tangents of what it captures need not show that. Those of the initial values do.
        """
        initial = [self.site.carries[self.point.states[k]].initial for k in self.positions]
        starts = [self.sweep.tangent(value, self.outer) for value in initial]
        if all(start is None for start in starts):
            return fine
        pairs = zip(starts, self.finals, strict=True)
        whole = [zero_cotangent(self.outer.expr(final)) if start is None else start for start, final in pairs]
        system = System.of(self.moved, whole, self.adjoint.tol)
        return op.And(fine, dies_out(system, fine, self.outer.expr(trips_of(self.stand_in, self.site.node))))

    def carried(self) -> ir.Graph:
        """The loop run again as often as it ran, with tangents carried along."""
        graph, inner = self.copied(self.stand_in.again), self.outer.child()
        again = dataclasses.replace(self.sweep, tangents=dict(self.sweep.tangents))
        again.run(graph, inner)
        results = [again.tangent_or_zero(graph.outputs[k], inner) for k in self.positions]
        nodes, constants = emptied(graph)
        inner.nodes[:0] = nodes
        inner.initializers.extend(constants)
        return inner.graph([], results, "tangent.carried")

    def copied(self, graph: ir.Graph) -> ir.Graph:
        """A copy of a graph, of which the sweep knows what it knows of the original: it may be needed again."""
        mapping, copies = dict[ir.Value, ir.Value](), Copies()
        copy = copy_graph(graph, mapping, self.outer.namer, copies)
        for old, new in mapping.items():
            self.sweep.activity.replaced(old, new)
            if old in self.sweep.cut:
                self.sweep.cut.add(new)
        self.sweep.implicit.update({c: self.sweep.implicit[o] for c, o in copies.items() if o in self.sweep.implicit})
        return copy


def _has_sites(graph: ir.Graph) -> bool:
    return any(is_loop(node) or is_branch(node) for node in graph)
