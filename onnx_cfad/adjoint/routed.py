"""A branch run backwards by its recorded predicate: only the branch that was taken has a reverse pass.

The predicate is the record: one boolean an execution. Residuals of the taken branch are handed out by the If (the
other branch gives empty placeholders); inside a loop, where outputs of differing shape cannot be stacked, the taken
branch is computed again from what entered it.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.branch_factors import BranchFactors
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, zeros_like
from onnx_cfad.adjoint.extend import extend_branch
from onnx_cfad.adjoint.residuals import Keeper, resolve
from onnx_cfad.adjoint.sweep import Sweep, active_captures
from onnx_cfad.graph.regions import branch_site


@dataclasses.dataclass(frozen=True)
class Routed(Adjoint):
    """Reverse pass of the taken branch only, chosen by the recorded predicate."""

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        site = branch_site(node)
        outer = cotangents.builder
        seeds = [cotangents.take(output) for output in node.outputs]
        inners = [_swept(sweep, branch, seeds, cotangents, in_loop) for branch in site.branches]
        factors = BranchFactors(site, inners, cotangents)
        pairs = list(zip(inners, site.branches, strict=True))
        read = [v for inner, branch in pairs for v in active_captures(inner, _inside(inner, branch))]
        captured = list(dict.fromkeys(read))
        if not captured and not factors.slots:
            return
        graphs: list[ir.Graph] = []
        for side, (inner, branch) in enumerate(pairs):
            results = [*(_result(inner, value) for value in captured), *factors.results(side)]
            graph = inner.builder.graph([], results, f"reverse.{('then', 'else')[side]}")
            keeper = _BranchKeeper(node, branch, outer, in_loop)
            resolve(graph, branch, keeper, sweep.records, outer.namer)
            graphs.append(graph)
        outs = outer.call(
            "If",
            [outer.expr(site.predicate)],
            {"then_branch": graphs[0], "else_branch": graphs[1]},
            types=[_cotangent_type(value) for value in (*captured, *(slot.like for slot in factors.slots))],
            outputs=len(captured) + len(factors.slots),
        )
        for value, out in zip(captured, outs, strict=False):
            out.value.shape = value.shape
            cotangents.add(value, out)
        factors.contribute(outs[len(captured) :])


def _swept(sweep: Sweep, branch: ir.Graph, seeds: list[Expr | None], around: Cotangents, in_loop: bool) -> Cotangents:
    """The cotangents of what a branch reads, from those of what it returns."""
    inside = around.inside | {branch} if around.inside else around.inside
    inner = Cotangents(around.builder.child(), inside=inside)
    for result, seed in zip(branch.outputs, seeds, strict=True):
        if seed is not None and sweep.activity.is_active(result):
            inner.add(result, _seed_of(inner.builder, seed, result))
    sweep.run(branch, inner, in_loop=in_loop)
    return inner


def _seed_of(builder: Builder, seed: Expr, result: ir.Value) -> Expr:
    """The cotangent of a branch's result: of that branch's shape, where the other branch may have another one."""
    known = seed.value.shape
    if known is not None and known == result.shape:
        return builder.expr(seed.value)
    own = builder.fresh_identity(seed.value)
    own.shape = result.shape
    return builder.expr(own)


def _inside(inner: Cotangents, branch: ir.Graph) -> list[ir.Value]:
    return [value for value in inner if value.graph is branch]


def _result(inner: Cotangents, value: ir.Value) -> Expr:
    """The cotangent of a captured value in one branch; exactly zero where the branch does not read it."""
    total = inner.take(value)
    if total is not None:
        return total
    primal = inner.builder.expr(value)
    if primal.is_tensor:
        return zeros_like(primal)
    from onnx_cfad.rules.sequences import zeros_like_sequence  # noqa: PLC0415 - rules are built on expressions

    return zeros_like_sequence(primal)


def _cotangent_type(value: ir.Value) -> ir.TypeProtocol:
    assert value.type is not None
    return value.type


class _BranchKeeper(Keeper):
    """Keeps branch values as further outputs of the If, where they need not be stacked."""

    def __init__(self, node: ir.Node, branch: ir.Graph, outer: Builder, in_loop: bool) -> None:
        self.node, self.branch, self.outer, self.in_loop = node, branch, outer, in_loop

    def bound(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.bound``: what the branch returned is there as an output of the If."""
        for result, output in zip(self.branch.outputs, self.node.outputs, strict=True):
            if result is value and output.shape is not None:
                return output
        return None

    def save(self, value: ir.Value, *, must: bool) -> ir.Value | None:
        """See ``Keeper.save``."""
        if self.in_loop and not must:
            return None
        return extend_branch(self.node, self.branch, value, self.outer.namer, full=self.in_loop)
