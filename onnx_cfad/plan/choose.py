"""The automatic choice: how each control-flow site is run backwards.

Every such decision is made in this file, but for fixed points (``implicit_choice``).

Policy: keep everything while the tapes fit the memory that was given, else checkpoint the loop with the largest tape,
then the next one. What a tape keeps of an iteration is a matter of bytes against operations: its residuals, or its
carries alone where the rest is many bytes and few operations. A branch is run backwards by its recorded predicate, with
its residuals saved where they fit; where the target has no cheap branches, both sides are computed and a mask selects.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length, kept_in_sequences
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.masked import Masked
from onnx_cfad.adjoint.routed import RESIDUALS, Routed
from onnx_cfad.adjoint.segments import LONGEST_SEQUENCE
from onnx_cfad.adjoint.taped import NARROW as NARROW_TAPES
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.cost import EXACT, NARROW, UNKNOWN_SHAPE, LoopCost, Measured, bytes_of, loop_cost, tape_bytes
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.profile import Profile
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.reduced_predicate import reduced_vector
from onnx_cfad.graph.regions import (
    BranchSite,
    ControlFlowGraph,
    LoopSite,
    Region,
    Site,
    branch_site,
    captured_by,
    is_branch,
    is_loop,
    loop_site,
)
from onnx_cfad.graph.trips import decides_by_index, trip_count
from onnx_cfad.graph.types import Types
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.graph.work import work_of
from onnx_cfad.options import Options
from onnx_cfad.plan.asked import asked_adjoints, asked_branches
from onnx_cfad.plan.implicit_choice import bytes_of_results, implicit_choice
from onnx_cfad.plan.over_memory import over_memory
from onnx_cfad.plan.plan import Decision, Plan
from onnx_cfad.plan.schedule import Schedule, best_segment
from onnx_cfad.plan.without_effect import without_effect

_LARGE_CARRY = 1 << 20  # bytes: from here a third level pays
_LONG = 100_000  # iterations
_KEPT_PART = 12  # products are kept for a replay where they are at most this part of what a full tape keeps
# A tape of _MANY bytes keeps carries alone where an iteration has _TIMES_THE_CARRY their bytes and a residual takes at
# most _OPERATIONS a byte (Tanh of float32: 2.5). Measured, chains of four such functions over 256 to 65,536 elements:
# 0.5 to 0.9 of the time in a first run, 0.9 later, a quarter to a half of the memory. Of two: 1.15 of the time later.
_MANY, _TIMES_THE_CARRY, _OPERATIONS = 1 << 20, 5, 3
_TIMES_WHAT_ENTERS = 2  # a branch is computed again where its residuals are as many times the bytes that enter it
_FEW = 4  # iterations: up to here a loop written out creates its session no slower


def choose_adjoints(sites: ControlFlowGraph, types: Types, options: Options, profile: Profile | None = None) -> Plan:
    """The adjoint of every Loop, Scan and If: automatic, one kind for all loops, a plan file, or site by site.

    Args:
        sites: The control flow.
        types: What is known of shapes.
        options: What the user asks for.
        profile: What real runs did.

    Raises:
        PlanError: A site that was named does not exist, or cannot be run backwards as asked.
    """
    asked = asked_adjoints(sites, options)
    budget = options.memory
    trips = _measured(sites, profile)
    loops = _Loops(options, asked, trips, types)
    tapes = {site.path: loops.full_tape(site) for site in _outermost(sites)}
    tops = sorted(_outermost(sites), key=lambda site: -tapes[site.path])
    total = sum(tapes.values())
    for top in tops:
        full = tapes[top.path]
        fits = total <= budget
        loops.decide(top, full if fits else max(budget // max(len(tops), 1), 1))
        total -= 0 if fits else full
    decisions = loops.decisions
    used = sum(decisions[top.path].bytes or 0 for top in tops)
    _Branches(options, asked, decisions, profile, trips, budget - used).region(sites.root, 1)
    ordered = {site.path: decisions[site.path] for site in sites.sites() if _known(site)}
    warnings = (*without_effect(sites, options, ordered), *over_memory(options, [decisions[top.path] for top in tops]))
    return Plan(ordered, *asked_branches(options, profile), warnings)


def _measured(sites: ControlFlowGraph, profile: Profile | None) -> Measured:
    """The most iterations that each loop ran for in one execution, as far as a profile knows."""
    counts = profile.loops if profile is not None else {}
    found = {site.node: counts[site.path] for site in sites.sites() if site.path in counts}
    return {node: count.most for node, count in found.items() if count.executions}


def _known(site: Site) -> bool:
    return is_loop(site.node) or is_branch(site.node)


def _outermost(sites: ControlFlowGraph) -> list[Site]:
    """The loops that are in no other loop."""
    found: list[Site] = []
    pending = list(sites.root.sites)
    while pending:
        site = pending.pop(0)
        if is_loop(site.node):
            found.append(site)
        else:
            pending += [inner for region in site.regions for inner in region.sites]
    return found


@dataclasses.dataclass
class _Loops:
    """Decides for the loops of a model.

    Attributes:
        options: The options.
        asked: What the user said about single sites.
        measured: Iterations of loops, from the profile.
        types: What is known of shapes.
        decisions: Those made so far.
    """

    options: Options
    asked: Mapping[str, Adjoint]
    measured: Measured
    types: Types
    decisions: dict[str, Decision] = dataclasses.field(default_factory=dict[str, Decision])

    def full_tape(self, site: Site) -> int:
        """Bytes of the tape of a loop, were there memory for it."""
        if isinstance(self.asked.get(site.path), Implicit) or (
            site.path not in self.asked and implicit_choice(site, self.options) is not None
        ):
            return 0
        cost = self.cost(site)
        return _tape_of(self.taped(site, cost), cost)

    def cost(self, site: Site, unknown: int = UNKNOWN_SHAPE) -> LoopCost:
        """The sizes of a loop, with the tape that it will have."""
        tape = _tape_type(self.asked.get(site.path, Taped(self.options.tape)))
        return loop_cost(site.node, self.options.trips, self.measured, unknown, _widest(tape))

    def decide(self, site: Site, budget: int) -> None:
        """Decides for a loop and the loops inside it, within ``budget`` bytes."""
        cost = self.cost(site)
        decision = self.loop(site, cost, budget)
        known = self.cost(site, unknown=0)
        certain = _bytes(decision.adjoint, known, site, unknown=0)
        self.decisions[site.path] = _told(decision, certain, unsized=known.iteration < cost.iteration)
        adjoint = decision.adjoint
        held = max(cost.trips, 1)
        if isinstance(adjoint, Implicit):
            held = 1
        if isinstance(adjoint, Checkpointed):
            held = adjoint.segment or best_length(max(cost.trips, 1))
        for inner in (s for region in site.regions for s in _loops_in(region.sites)):
            self.decide(inner, max(budget // max(held, 1), 1))

    def loop(self, site: Site, cost: LoopCost, budget: int) -> Decision:
        """The decision for one loop."""
        options, asked = self.options, self.asked.get(site.path)
        number = f"{cost.trips:,} trips" + (" assumed" if cost.assumed else "")
        if asked is not None:
            return Decision(asked, _bytes(asked, cost, site), "as asked")
        implicit = implicit_choice(site, options)
        if implicit is not None:
            return implicit
        loop = loop_site(site.node)
        few = trip_count(loop)
        short = few.static is not None and few.static <= _FEW and not few.conditional
        if options.plan == "auto" and short and decides_by_index(loop):
            return Decision(Unrolled(), None, f"{few.static} iterations whose choices the iteration number makes")
        if options.plan == "taped":
            return Decision(Taped(options.tape), cost.trips * cost.iteration, "as asked")
        if options.plan == "unrolled":
            return Decision(Unrolled(), None, "as asked")
        taped = self.taped(site, cost)
        full = _tape_of(taped, cost)
        long = cost.trips > LONGEST_SEQUENCE and self.tapes_in_sequence(loop)
        if options.plan in ("auto", "implicit") and full <= budget and not long:
            kept = "the full tape fits" if not taped.keep else "the tape of its carries fits, the rest is cheap"
            return Decision(taped, full, f"{kept}: {number}")
        adjoint = self.checkpointed(site, cost)
        why = f"the full tape takes {full:,} bytes ({number})"
        if long:
            why = f"its tape is a sequence, which takes time by the square of its length ({number})"
        return Decision(adjoint, _bytes(adjoint, cost, site), "as asked" if options.plan == "checkpointed" else why)

    def taped(self, site: Site, cost: LoopCost) -> Taped:
        """The full tape of a loop: of its residuals, or of its carries where these are few bytes beside the rest."""
        body = loop_site(site.node).body
        residuals = cost.iteration - cost.taped_carry
        many = cost.trips * cost.iteration >= _MANY and cost.iteration >= _TIMES_THE_CARRY * cost.taped_carry
        if self.options.plan == "taped" or not many or any(subgraphs_of(node) for node in body):
            return Taped(self.options.tape)
        sized = all(o.shape is not None and o.shape.is_static() for node in body for o in node.outputs)
        cheap = sized and work_of(body, self.options.trips, self.measured) <= _OPERATIONS * residuals
        return Taped(self.options.tape, "carry" if cheap else "")

    def tapes_in_sequence(self, loop: LoopSite) -> bool:
        """Whether a tape of the loop is a sequence that checkpoints can make shorter: a tensor carry varies in shape.

        The loop has to be one that can be replayed: no optional carry, and no draws whose shape may vary too. A carry
        that is a sequence itself takes square time in the forward pass already, and its elements are stacked.
        """
        optional = any(isinstance(c.entry.type, ir.OptionalType) for c in loop.carries)
        replayable = all(map(is_pure, loop.body)) and not optional
        return replayable and any(isinstance(v.type, ir.TensorType) for v in kept_in_sequences(loop, self.types))

    def checkpointed(self, site: Site, cost: LoopCost) -> Checkpointed:
        """The checkpoints of a loop."""
        options, loop = self.options, loop_site(site.node)
        most = LONGEST_SEQUENCE if kept_in_sequences(loop, self.types) else None
        deep = cost.carry >= _LARGE_CARRY and cost.trips >= _LONG
        deep = deep or (most is not None and cost.trips > most * most)
        levels = options.levels or (3 if deep else 2)
        keep = "products" if 0 < _kept(site) <= cost.iteration // _KEPT_PART else ""
        if options.segment is not None:
            return Checkpointed(options.segment, levels, options.tape, keep)
        fixed = trip_count(loop).static is not None
        if not fixed and levels == 2:
            return Checkpointed(0, levels, options.tape, keep)
        divides = fixed and most is None
        segment = best_segment(cost.trips, cost.carry, cost.iteration, divides=divides, levels=levels)
        return Checkpointed(segment if most is None else min(segment, most), levels, options.tape, keep)


def _tape_type(adjoint: Adjoint) -> str:
    """The element type that a tape is narrowed to, as it is written."""
    return adjoint.tape if isinstance(adjoint, (Taped, Checkpointed)) else ""


def _widest(tape: str) -> int:
    return EXACT if NARROW_TAPES[tape] is None else NARROW


def _tape_of(taped: Taped, cost: LoopCost) -> int:
    return cost.trips * (cost.taped_carry if taped.keep else cost.iteration)


def _told(decision: Decision, certain: int | None, *, unsized: bool) -> Decision:
    """``decision``, which says what is certain of its bytes where sizes are not known."""
    counted = unsized and decision.reason != "as asked"
    note = f"; what has no known shape counts {UNKNOWN_SHAPE:,} bytes" if counted else ""
    return dataclasses.replace(decision, certain=certain, reason=decision.reason + note)


def _loops_in(sites: tuple[Site, ...]) -> list[Site]:
    found: list[Site] = []
    for site in sites:
        found += [site] if is_loop(site.node) else [s for region in site.regions for s in _loops_in(region.sites)]
    return found


def _kept(site: Site) -> int:
    """Bytes of an iteration's products that are dear to compute again."""
    return sum(map(bytes_of, dear_products(loop_site(site.node).body)))


def _bytes(adjoint: Adjoint, cost: LoopCost, site: Site, unknown: int = UNKNOWN_SHAPE) -> int | None:
    if isinstance(adjoint, Unrolled):
        return None
    if isinstance(adjoint, Implicit):
        return bytes_of_results(site, unknown)
    if isinstance(adjoint, Checkpointed):
        segment = adjoint.segment or best_length(max(cost.trips, 1))
        kept = cost.trips * _kept(site) if adjoint.keep else 0
        return kept + Schedule(cost.trips, segment, adjoint.levels).peak_bytes(cost.carry, cost.iteration)
    return _tape_of(adjoint if isinstance(adjoint, Taped) else Taped(), cost)


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
    operations: float = _OPERATIONS
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
class _Branches:
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
                most = min(most, _widest(_tape_type(self.decisions[site.path].adjoint)))
            for part in site.regions:
                self.region(part, inner, in_loop=in_loop or is_loop(site.node), widest=most)

    def iterations(self, site: Site) -> int:
        """Iterations of a loop that are on the tape at one time."""
        adjoint = self.decisions[site.path].adjoint
        trips = max(loop_cost(site.node, self.options.trips, self.measured).trips, 1)
        return min(adjoint.segment or best_length(trips), trips) if isinstance(adjoint, Checkpointed) else trips

    def decide(self, site: Site, held: int, *, in_loop: bool, widest: int) -> Decision:
        branch = branch_site(site.node)
        sizes = self.sizes(branch, UNKNOWN_SHAPE, widest)
        decision = self.decide_by(site, held, sizes, in_loop=in_loop)
        mask = held if in_loop else 0
        known = self.sizes(branch, 0, widest)
        certain = _branch_bytes(decision.adjoint, known, held, mask, in_loop=in_loop)
        return _told(decision, certain, unsized=known != sizes)

    def sizes(self, branch: BranchSite, unknown: int, widest: int) -> list[int]:
        """Bytes of the residuals of each branch."""
        return [tape_bytes(graph, self.options.trips, self.measured, unknown, widest) for graph in branch.branches]

    def decide_by(self, site: Site, held: int, sizes: list[int], *, in_loop: bool) -> Decision:
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
        large = most * held >= _MANY and most >= _TIMES_WHAT_ENTERS * sum(map(bytes_of, entering))
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
