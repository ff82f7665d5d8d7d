"""The automatic choice for branches: how each If is run backwards, when the loops are decided."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length
from onnx_cfad.adjoint.masked import Masked
from onnx_cfad.adjoint.routed import RESIDUALS, Routed
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.cost import EXACT, UNKNOWN_SHAPE, Measured, bytes_of, loop_cost, tape_bytes
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.profile import Profile
from onnx_cfad.graph.reduced_predicate import reduced_vector
from onnx_cfad.graph.regions import BranchSite, Region, Site, branch_site, captured_by, is_branch, is_loop
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.graph.work import work_of
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import Decision
from onnx_cfad.plans.tape_sizes import MANY, OPERATIONS, tape_type, widest_of, with_certain

_TIMES_WHAT_ENTERS = 2  # a branch is computed again where its residuals are as many times the bytes that enter it


@dataclasses.dataclass(frozen=True)
class BranchRules:
    """What decides between the forms of a branch on one target.

    Attributes:
        masked: Operations of both branches together up to which both are computed and a mask selects.
        hot: Share of executions from which a branch counts as the hot one.
        why: The reason for a mask, for the plan.
        operations: Operations for each byte of its residuals up to which a branch in a loop is computed again instead
            of being taped, where its tape is large.
        nodes: Nodes of both branches together up to which they are written a second time for that.
    """

    masked: float
    hot: float
    why: str
    operations: float = OPERATIONS
    nodes: int = 256


BRANCHES: Mapping[str, BranchRules] = {
    # Measured on ONNX Runtime's CPU provider (docs/branches.md): an If costs 1.5 microseconds, a mask at least as much
    # forward and twice as much backward, for branches of one operator as for large ones. What only hands values on is
    # one Where.
    "ort": BranchRules(0, 0.9, "both branches only hand values on"),
    "llvm": BranchRules(0, 0.9, "both branches only hand values on"),
    # A branch that the host decides waits for the device, whatever its size.
    "cuda": BranchRules(math.inf, 0.9, "target cuda would wait for the predicate"),
    "ascend": BranchRules(math.inf, 0.9, "target ascend has no branches of its own"),
}
"""The cost rules by target.

Saved residuals are faster than recomputed ones where a branch has products: measured 5 to 25 % of the whole at 14
operations a byte (three MatMul) and more. Five functions of 8 elements in a loop, 2 operations a byte, take 3.1 times
the forward run recomputed and 3.2 saved, with a third of the memory. A node more takes ONNX Runtime 0.05 ms to create.
"""


@dataclasses.dataclass
class Branches:
    """Decides for the branches of a model, when its loops are decided.

    Attributes:
        options: The options.
        asked: What the user said about single sites.
        decisions: Those of the loops; those of branches are added.
        profile: What real runs did.
        measured: Iterations of loops, from the profile.
        left: Bytes of memory that nothing is planned into yet.
    """

    options: Options
    asked: Mapping[str, Adjoint]
    decisions: dict[str, Decision]
    profile: Profile | None
    measured: Measured
    left: int

    def region(self, region: Region, held: int, *, in_loop: bool = False, widest: int = EXACT) -> None:
        """Decides for the branches of ``region``, of which ``held`` executions are kept at one time.

        Args:
            region: The region.
            held: Its executions.
            in_loop: It is in a loop.
            widest: Bytes of an element of that loop's tape at most.
        """
        for site in region.sites:
            inner, most = held, widest
            if is_branch(site.node):
                self.decisions[site.path] = self.decide(site, held, in_loop=in_loop, widest=widest)
            elif site.path in self.decisions:
                inner = held * self.iterations(site)
                most = min(most, widest_of(tape_type(self.decisions[site.path].adjoint)))
            for part in site.regions:
                self.region(part, inner, in_loop=in_loop or is_loop(site.node), widest=most)

    def iterations(self, site: Site) -> int:
        """Iterations of a loop that are on the tape at one time."""
        adjoint = self.decisions[site.path].adjoint
        trips = max(loop_cost(site.node, self.options.trips, self.measured).trips, 1)
        return min(adjoint.segment or best_length(trips), trips) if isinstance(adjoint, Checkpointed) else trips

    def decide(self, site: Site, held: int, *, in_loop: bool, widest: int) -> Decision:
        """The decision for a branch, with what is certain of its bytes."""
        branch = branch_site(site.node)
        sizes = self.sizes(branch, UNKNOWN_SHAPE, widest)
        decision = self.decide_by(site, held, sizes, in_loop=in_loop)
        mask = held if in_loop else 0
        known = self.sizes(branch, 0, widest)
        certain = _branch_bytes(decision.adjoint, known, held, mask, in_loop=in_loop)
        return with_certain(decision, certain, unsized=known != sizes)

    def sizes(self, branch: BranchSite, unknown: int, widest: int) -> list[int]:
        """Bytes of the residuals of each branch."""
        return [tape_bytes(graph, self.options.trips, self.measured, unknown, widest) for graph in branch.branches]

    def decide_by(self, site: Site, held: int, sizes: list[int], *, in_loop: bool) -> Decision:
        """The decision for a branch whose residuals have ``sizes`` bytes."""
        branch, asked = branch_site(site.node), self.asked.get(site.path)
        mask = held if in_loop else 0  # bytes: one for each execution; outside loops the predicate is there anyway
        if asked is not None:
            return Decision(asked, _branch_bytes(asked, sizes, held, mask, in_loop=in_loop), "as asked")
        rules = BRANCHES[self.options.target]
        work = sum(work_of(graph, self.options.trips, self.measured) for graph in branch.branches)
        unmaskable = why_not_masked(branch) if work <= rules.masked else None
        if work <= rules.masked and unmaskable is None:
            return Decision(Masked(), mask + held * sum(sizes), rules.why)
        adjoint, reason = self.routed(site, sizes, held, in_loop=in_loop)
        found = _branch_bytes(adjoint, sizes, held, mask, in_loop=in_loop)
        self.left -= 0 if in_loop else found  # the tape of a loop has its branches in it
        notes = [reason, f"not masked: {unmaskable}" if unmaskable else "", _per_element(branch)]
        return Decision(adjoint, found, "; ".join(note for note in notes if note))

    def routed(self, site: Site, sizes: list[int], held: int, *, in_loop: bool) -> tuple[Routed, str]:
        """What is done with the residuals, ``sizes`` bytes of them in each branch, and why."""
        counts = self.profile.branches.get(site.path) if self.profile is not None else None
        fits = max(sizes) * held <= (self.options.memory if in_loop else self.left)
        if not fits:
            return Routed("recomputed"), f"its residuals would take {max(sizes) * held:,} bytes"
        cheap = self.why_recomputed(branch_site(site.node), sizes, held) if in_loop else None
        if cheap is not None:
            return Routed("recomputed"), cheap
        if counts is None or counts.executions == 0:
            unseen = "" if counts is None else ", never reached in the profile"
            return Routed("saved"), f"by the recorded predicate{unseen}"
        share = counts.then / counts.executions
        side = "then" if share >= BRANCHES[self.options.target].hot else "else"
        if max(share, 1 - share) < BRANCHES[self.options.target].hot:
            return Routed("saved"), f"then taken in {share:.0%} of {counts.executions:,} executions"
        hot = max(share, 1 - share)
        never = counts.never_taken()
        cold = f"{never} never taken in" if never else f"{side} taken in {hot:.1%} of"
        return Routed(f"{side}_saved"), f"{cold} {counts.executions:,} executions"

    def why_recomputed(self, branch: BranchSite, sizes: list[int], held: int) -> str | None:
        """Why a branch in a loop is better computed again than taped; None where it is not."""
        rules, most = BRANCHES[self.options.target], max(sizes)
        inner = [nodes_of(graph) for graph in branch.branches]
        count = sum(map(len, inner))
        entering = [v for v in captured_by(branch.node) if v.graph is branch.node.graph and carries_derivative(v)]
        sized = all(o.shape is not None and o.shape.is_static() for nodes in inner for n in nodes for o in n.outputs)
        large = most * held >= MANY and most >= _TIMES_WHAT_ENTERS * sum(map(bytes_of, entering))
        if not (sized and large and count <= rules.nodes):
            return None
        works = [work_of(graph, self.options.trips, self.measured) for graph in branch.branches]
        if any(work > rules.operations * size for work, size in zip(works, sizes, strict=True)):
            return None
        each = max(work / size for work, size in zip(works, sizes, strict=True) if size)
        tape = f"a tape of {most * held:,} bytes"
        return f"computed again for {count} more nodes: {each:.1f} operations for each byte of {tape}"


def _branch_bytes(adjoint: Adjoint, sizes: list[int], held: int, mask: int, *, in_loop: bool) -> int:
    """Bytes that the record of a branch takes: the mask, and the residuals of the larger branch that saves them."""
    if not isinstance(adjoint, Routed):
        return mask + held * sum(sizes)
    saves = RESIDUALS[adjoint.residuals] or (not in_loop, not in_loop)
    return mask + held * max(size if save else 0 for size, save in zip(sizes, saves, strict=True))


def _per_element(branch: BranchSite) -> str:
    vector = reduced_vector(branch.predicate)
    return "" if vector is None else f"its predicate reduces '{vector.name}', which could be a mask for each element"
