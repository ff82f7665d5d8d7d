"""A branch run backwards by its recorded predicate: only the branch that was taken has a reverse pass.

The predicate is the record: one boolean an execution, one byte an iteration inside a loop. What the reverse pass of the
taken branch reads is saved, or computed again from what entered the branch.

Saved residuals are handed out by the If, in outputs that both branches share: where one has more of them than the
other, the other gives empty placeholders. Inside a loop the outputs are stacked, so only residuals of one static shape
are saved, and the branch that is second adds no output: a tape never holds the residuals of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.branch_factors import BranchFactors
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr
from onnx_cfad.adjoint.extend import extend_branch, share_output, stackable
from onnx_cfad.adjoint.residuals import Keeper, resolve
from onnx_cfad.adjoint.sweep import Sweep, active_captures
from onnx_cfad.adjoint.zeros import zero_cotangents
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.regions import branch_site
from onnx_cfad.graph.site_marks import mark, marked
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer

RESIDUALS = {
    "auto": None,
    "saved": (True, True),
    "recomputed": (False, False),
    "then_saved": (True, False),
    "else_saved": (False, True),
}
"""What may be said about residuals, and whether those of the then-branch and of the else-branch are saved."""


@dataclasses.dataclass(frozen=True)
class Routed(Adjoint):
    """Reverse pass of the taken branch only, chosen by the recorded predicate.

    Attributes:
        residuals: "saved" for both branches, "recomputed" for neither, "then_saved" or "else_saved" for one of them;
            "auto" for saved outside of loops and recomputed inside. What cannot be computed again (a random draw) is
            saved in any case.
    """

    residuals: str = "auto"

    def __post_init__(self) -> None:
        if self.residuals not in RESIDUALS:
            raise PlanError(f"residuals '{self.residuals}'", f"expected one of {', '.join(RESIDUALS)}", "See `plan`.")

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
        saved = RESIDUALS[self.residuals] or (not in_loop, not in_loop)
        slots = Slots(node, outer.namer, in_loop=in_loop)
        graphs: dict[ir.Graph, ir.Graph] = {}
        order = sorted(range(2), key=lambda side: _size(site.branches[side], saves=saved[side]), reverse=True)
        for side in order:
            inner, branch, save = inners[side], site.branches[side], saved[side]
            results = [*_results(inner, captured, outer), *factors.results(side)]
            graph = inner.builder.graph([], results, f"reverse.{('then', 'else')[side]}")
            resolve(graph, branch, _BranchKeeper(slots, branch, saves=save), sweep.records, outer.namer)
            graphs[branch] = graph
        outs = outer.call(
            "If",
            [outer.expr(site.predicate)],
            {"then_branch": graphs[site.then_branch], "else_branch": graphs[site.else_branch]},
            types=[_cotangent_type(value) for value in (*captured, *(slot.like for slot in factors.slots))],
            outputs=len(captured) + len(factors.slots),
        )
        _mark_as(outs[0].value.producer(), node)
        for value, out in zip(captured, outs, strict=False):
            out.value.shape = value.shape
            cotangents.add(value, out)
        factors.contribute(outs[len(captured) :])


def _mark_as(reverse: ir.Node | None, node: ir.Node) -> None:
    """The reverse pass is of the branch that the If ``node`` is of."""
    assert reverse is not None
    mark(reverse, marked(node))


def _size(branch: ir.Graph, *, saves: bool) -> tuple[bool, int]:
    """The branch that saves, and saves more, goes first: the other fits into its outputs."""
    return saves, len(nodes_of(branch))


def _swept(sweep: Sweep, branch: ir.Graph, seeds: list[Expr | None], around: Cotangents, in_loop: bool) -> Cotangents:
    """The cotangents of what a branch reads, from those of what it returns."""
    inside = around.inside | {branch} if around.inside else around.inside
    inner = Cotangents(around.builder.branch(), inside=inside)
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


def _results(inner: Cotangents, captured: Sequence[ir.Value], outer: Builder) -> list[Expr]:
    """The cotangents of captured values in one branch; exactly zero where the branch does not read them."""
    totals = [inner.take(value) for value in captured]
    unread = [inner.builder.expr(value) for value, total in zip(captured, totals, strict=True) if total is None]
    zeros = iter(zero_cotangents(unread, outer))
    return [next(zeros) if total is None else total for total in totals]


def _cotangent_type(value: ir.Value) -> ir.TypeProtocol:
    assert value.type is not None
    return value.type


@dataclasses.dataclass
class Slots:
    """The outputs of an If that hand out residuals; each branch uses each of them once at most.

    Attributes:
        node: The If.
        namer: For new names.
        in_loop: The outputs will be stacked.
    """

    node: ir.Node
    namer: Namer
    in_loop: bool
    used: dict[ir.Value, list[ir.Graph]] = dataclasses.field(default_factory=dict[ir.Value, list[ir.Graph]])

    def save(self, branch: ir.Graph, value: ir.Value, *, must: bool) -> ir.Value | None:
        """The output that hands out ``value`` of ``branch``; None where there is none, unless one ``must`` be made."""
        for output, users in self.used.items():
            if branch not in users and self._fits(output, value):
                share_output(self.node, branch, output, value, self.namer, stacked=self.in_loop)
                users.append(branch)
                return output
        second = any(branch not in users for users in self.used.values())
        if not must and self.in_loop and (second or not stackable(value)):
            return None
        output = extend_branch(self.node, branch, value, self.namer, full=self.in_loop)
        self.used[output] = [branch]
        return output

    def _fits(self, output: ir.Value, value: ir.Value) -> bool:
        if output.type != value.type or (output.shape is None) != (value.shape is None):
            return False
        if self.in_loop:
            return stackable(value) and output.shape == value.shape
        return output.shape is None or value.shape is None or output.shape.rank() == value.shape.rank()


class _BranchKeeper(Keeper):
    """Keeps branch values as further outputs of the If."""

    def __init__(self, slots: Slots, branch: ir.Graph, *, saves: bool) -> None:
        self.slots, self.branch, self.saves = slots, branch, saves

    def bound(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.bound``: what the branch returned is there as an output of the If."""
        for result, output in zip(self.branch.outputs, self.slots.node.outputs, strict=True):
            if result is value and output.shape is not None:
                return output
        return None

    def save(self, value: ir.Value, *, must: bool) -> ir.Value | None:
        """See ``Keeper.save``."""
        return self.slots.save(self.branch, value, must=must) if self.saves or must else None
