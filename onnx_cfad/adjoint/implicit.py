"""A loop that converged, run backwards as one operator: by the implicit function theorem.

Other names: implicit differentiation, adjoint of a fixed point, deep equilibrium gradient. Where z* = f(z*, theta), the
cotangent v of z* gives that of theta as (df/dtheta)' u with u = v + (df/dz)' u. One linear solve takes the place of the
whole reverse loop: memory O(|z|) and time that do not depend on the number of iterations. The residuals of f at z* are
computed once; each step of the solver runs the transposed linear part alone. The gradient by the initial guess is zero.

It holds where the loop converged and the map contracts. Both are checked in the graph, and where they do not hold the
loop is run again and backwards from checkpoints, or the gradient is NaN.

The solve is itself a fixed point: one more step of it, in a Loop marked so, carries its own implicit derivative, and
second derivatives are exact however the solver came to its solution.

References: Bai, Kolter and Koltun, Deep Equilibrium Models, https://arxiv.org/abs/1909.01377; Blondel et al., Efficient
and Modular Implicit Differentiation, https://arxiv.org/abs/2105.15183.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, op, where, zeros_like
from onnx_cfad.adjoint.implicit_forward import add_stand_in
from onnx_cfad.adjoint.implicit_guard import converged, felt_move, has_to_rest, holds, polished, relative_move, trips_of
from onnx_cfad.adjoint.linear import LinearMap, emptied, needed_for, split_linear
from onnx_cfad.adjoint.sweep import Diagnostics, Sweep
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.regions import captured_by, label, loop_site
from onnx_cfad.graph.stand_in import StandIn, stand_in_of
from onnx_cfad.graph.types import Types
from onnx_cfad.options import FALLBACKS
from onnx_cfad.solvers.choice import SOLVERS, solve
from onnx_cfad.solvers.system import Apply, Solution, System

FORWARDS = ("plain", "anderson")


@dataclasses.dataclass(frozen=True)
class Implicit(Adjoint):
    """The implicit function theorem at the loop's result.

    Attributes:
        solver: "auto", "neumann", "anderson", "gmres" or "bicgstab".
        tol: Relative error that the solution of the adjoint system may have; 0 for 1e-12 in float64, 4e-6 in float32,
            1e-3 in 16-bit types.
        max_iterations: Products with the transposed map at most; 0 for the solver's own limit.
        fallback: What happens where the loop did not converge or the map does not contract: "checkpointed" runs it
            backwards from checkpoints, "nan" gives NaN, "none" checks nothing but the solution of the system.
        forward: "anderson" accelerates the iterations of the loop itself, whose results then are others within its
            tolerance; "plain" leaves them.
    """

    solver: str = "auto"
    tol: float = 0.0
    max_iterations: int = 0
    fallback: str = "checkpointed"
    forward: str = "plain"

    def __post_init__(self) -> None:
        for name, known in (("solver", SOLVERS), ("fallback", FALLBACKS), ("forward", FORWARDS)):
            value = getattr(self, name)
            if value not in known:
                raise PlanError(f"implicit {name} '{value}'", f"expected one of {', '.join(known)}")
        if self.forward != "plain" and self.fallback == "checkpointed":
            found = "iterations that are accelerated are not run backwards where they do not converge"
            raise PlanError("implicit forward=anderson", found, "Add fallback=nan or fallback=none.")
        if not 0 <= self.tol < 1 or not 0 <= self.max_iterations < 2**31:
            found = f"tol={self.tol}, max_iterations={self.max_iterations}"
            raise PlanError("implicit", found, "Use 0 <= tol < 1 and a number of iterations; 0 is the default of each.")

    def prepare(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """See ``Adjoint.prepare``: puts a stand-in behind the loop, from which the reverse pass is made."""
        return self._prepare(node, types, builder, Checkpointed())

    def prepare_tangents(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """The same for forward mode, whose fallback carries tangents and needs no checkpoints."""
        return self._prepare(node, types, builder, Taped())

    def _prepare(self, node: ir.Node, types: Types, builder: Builder, fallback: Adjoint) -> Prepared:
        site = loop_site(node)
        point = find_fixed_point(site)
        if point.obstacles:
            why = "; ".join(point.obstacles)
            raise PlanError(label(node), f"it cannot be differentiated implicitly: {why}", "Choose checkpointed.")
        own = fallback if self.fallback == "checkpointed" else None
        below = add_stand_in(node, point, own, types, builder, accelerate=self.forward == "anderson")
        adjoints = {**below.adjoints, site.body: self}
        return dataclasses.replace(below, adjoints=adjoints)

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        del in_loop
        _Reverse(self, sweep, node, cotangents).run()


class _Reverse:
    """The reverse pass of one loop."""

    def __init__(self, adjoint: Implicit, sweep: Sweep, node: ir.Node, cotangents: Cotangents) -> None:
        found = stand_in_of(node)
        assert found is not None, f"{label(node)} was not prepared"
        self.adjoint, self.sweep, self.cotangents = adjoint, sweep, cotangents
        self.outer = cotangents.builder
        self.site = loop_site(node)
        self.point = find_fixed_point(self.site)
        self.stand_in = found

    def run(self) -> None:
        """Replaces the cotangents of the loop's results by those of what it captures."""
        results = self.stand_in.results
        seeds = {final: self.cotangents.take(final) for final in results}
        self.pass_by(seeds)
        self.sweep.records.counters[self.site.body] = trips_of(self.stand_in, self.site.node)
        seeded = {final: seed for final, seed in seeds.items() if seed is not None}
        if not seeded:
            return
        self.finals = _taking_part(self.stand_in, seeded)
        self.exits = dict(zip(results, self.stand_in.once_more.outputs, strict=True))
        self.linearise()
        self.rhs = [
            self.outer.expr(seeded[final].value) if final in seeded else zeros_like(self.outer.expr(final))
            for final in self.finals
        ]
        met = self.met()
        system = System.of(self.transposed, self.rhs, self.adjoint.tol, self.wide if self.map.can_widen else None)
        solution = solve(self.adjoint.solver, system, met, self.adjoint.max_iterations)
        fine = holds(solution, None if self.adjoint.fallback == "none" else met, self.rhs)
        self.diagnose(fine, solution)
        if self.adjoint.fallback == "checkpointed":
            self.with_fallback(fine, solution, seeded)
        else:
            self.without_fallback(fine, solution)

    def pass_by(self, seeds: dict[ir.Value, Expr | None]) -> None:
        """Cotangents of the other carries: what is handed on unchanged passes, a norm of the change is 0 throughout."""
        for k, carry in enumerate(self.site.carries):
            if carry.final in seeds:
                continue
            seed = self.cotangents.take(carry.final)
            if seed is not None and k in self.point.invariants and self.sweep.activity.is_active(carry.initial):
                self.cotangents.add(carry.initial, seed)

    # The linear map

    def linearise(self) -> None:
        """Records the transposed map at the loop's results, and what of it does not depend on the cotangents."""
        graph = self.stand_in.once_more
        inner = Cotangents(self.outer.child())
        entries: list[ir.Value] = []
        for final in self.finals:
            entry = inner.builder.input(f"ct.{final.name}", final.type, final.shape)
            inner.add(self.exits[final], entry)
            entries.append(entry.value)
        self.sweep.run(graph, inner, in_loop=False)
        self.entering = [inner.take(final) for final in self.finals]
        others = {value: inner.take(value) for value in inner if value.graph is not graph}
        self.captured = {v: ct for v, ct in others.items() if ct is not None and self.sweep.activity.is_active(v)}
        once, constants = emptied(graph)
        steady, moving = split_linear(inner.builder.nodes, entries)
        self.outer.initializers.extend([*constants, *inner.builder.initializers])
        self.outer.nodes.extend([*once, *steady])
        self.map = LinearMap(tuple(entries), tuple(moving))

    def transposed(self, builder: Builder, us: list[Expr]) -> list[Expr]:
        """(df/dz)' u at the loop's results."""
        return self.map.apply(builder, us, self.entering, self.finals)

    def wide(self, builder: Builder) -> Apply:
        """The same of float64; ``builder`` records what makes float64 of the residuals."""
        double, entering = self.map.widened(builder, self.entering)
        return lambda inner, us: double.apply(inner, us, entering, [u.value for u in us])

    # The guard

    def met(self) -> Expr:
        """Whether to trust that the loop converged (bool scalar)."""
        if self.adjoint.fallback == "none":
            return self.outer.constant(True)
        if self.point.condition is None:
            return converged(self.outer, self.stand_in, self.residual())
        exits = [self.exits[final] for final in self.finals]
        rests = has_to_rest(self.point, self.adjoint.fallback)
        return converged(
            self.outer, self.stand_in, felt_move(self.outer, self.rhs, self.finals, exits) if rests else None
        )

    def residual(self) -> Expr:
        """How far one more iteration would move the results, relative to them (scalar)."""
        return relative_move(self.outer, self.finals, [self.exits[final] for final in self.finals])

    def diagnose(self, fine: Expr, solution: Solution) -> None:
        """Leaves what a user may ask for where the pipeline finds it."""
        path = next((site.path for site in self.sweep.sites.sites() if site.node is self.site.node), None)
        if path is not None:
            self.sweep.diagnostics[path] = Diagnostics(self.outer, fine, self.residual(), solution.iterations)

    # The gradient

    def with_fallback(self, fine: Expr, solution: Solution, seeded: dict[ir.Value, Expr]) -> None:
        """By the solution where it holds; else the loop is run again, and backwards from checkpoints."""
        again = self.stand_in.again
        inner = Cotangents(self.outer.child())
        for final, output in zip(self.stand_in.results, again.outputs, strict=True):
            if final in seeded:
                inner.add(output, inner.builder.expr(seeded[final].value))
        self.sweep.run(again, inner, in_loop=False)
        found = {value: inner.take(value) for value in inner if value.graph is not again}
        own = {v: ct for v, ct in found.items() if ct is not None and self.sweep.activity.is_active(v)}
        targets = list(dict.fromkeys([*self.captured, *own]))
        if not targets:
            return
        implicit = self.outer.child()
        results = self.gradients(implicit, [implicit.expr(u.value) for u in solution.values], list(self.captured))
        by_value = dict(zip(self.captured, results, strict=True))
        nodes, constants = emptied(again)
        inner.builder.nodes[:0] = nodes
        inner.builder.initializers.extend(constants)
        graphs = [
            _closed(implicit, [by_value.get(value) for value in targets], targets, "implicit"),
            _closed(inner.builder, [own.get(value) for value in targets], targets, "checkpointed"),
        ]
        outs = self.outer.call(
            "If",
            [fine],
            {"then_branch": graphs[0], "else_branch": graphs[1]},
            types=[self.outer.expr(value).type for value in targets],
            outputs=len(targets),
        )
        for value, out in zip(targets, outs, strict=True):
            out.value.shape = value.shape
            self.cotangents.add(value, out)

    def without_fallback(self, fine: Expr, solution: Solution) -> None:
        """By the solution, which is NaN where it does not hold."""
        us = [where(fine, u, float("nan")) for u in solution.values]
        for u, final in zip(us, self.finals, strict=True):
            u.value.shape = final.shape
        for value, result in zip(self.captured, self.gradients(self.outer, us, list(self.captured)), strict=True):
            self.cotangents.add(value, result)
        if self.adjoint.fallback == "nan":
            for carry in (c for c in self.site.carries if c.final in self.finals):
                if self.sweep.activity.is_active(carry.initial):
                    initial = self.outer.expr(carry.initial)
                    zero, nan = (self.outer.constant(x, initial.dtype) for x in (0.0, float("nan")))
                    self.cotangents.add(carry.initial, op.Where(fine, zero, nan).expand(initial.shape))

    def gradients(self, builder: Builder, us: Sequence[Expr], captured: list[ir.Value]) -> list[Expr]:
        """The cotangents of captured values from the solution."""
        better = polished(builder, us, self.rhs, self.transposed, name="adjoint")
        return self.map.apply(builder, better, [self.captured[value] for value in captured], captured)


def _taking_part(found: StandIn, seeded: dict[ir.Value, Expr]) -> list[ir.Value]:
    """The results that those with a cotangent depend on, from one iteration to the next."""
    nodes = list(found.once_more)
    entering = {node.outputs[0]: final for node, final in zip(nodes, found.results, strict=False)}
    exits = dict(zip(found.results, found.once_more.outputs, strict=True))
    part = list(seeded)
    for final in part:
        reads = {v for node in needed_for(nodes, [exits[final]]) for v in (*node.inputs, *captured_by(node))}
        part += [other for entry, other in entering.items() if entry in reads and other not in part]
    return [final for final in found.results if final in part]


def _closed(builder: Builder, results: list[Expr | None], like: list[ir.Value], name: str) -> ir.Graph:
    """A branch of ``results``; what is missing is zero."""
    whole = [zero_cotangent(builder.expr(v)) if r is None else r for r, v in zip(results, like, strict=True)]
    return builder.graph([], whole, f"reverse.{name}")
