"""The automatic choice: how each control-flow site is run backwards. Every such decision is made in this file.

Policy: keep everything while the tapes fit the memory that was given, else checkpoint the loop with the largest tape,
then the next one. A branch is run backwards by its recorded predicate, with its residuals saved where they fit; where
the target has no cheap branches, both sides are computed and a mask selects.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.masked import Masked
from onnx_cfad.adjoint.routed import RESIDUALS, Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.cost import UNKNOWN_SHAPE, LoopCost, Measured, bytes_of, loop_cost, tape_bytes
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.profile import Profile
from onnx_cfad.graph.reduced_predicate import reduced_vector
from onnx_cfad.graph.regions import (
    BranchSite,
    ControlFlowGraph,
    Region,
    Site,
    branch_site,
    is_branch,
    is_loop,
    loop_site,
)
from onnx_cfad.graph.stopping import tests_in
from onnx_cfad.graph.trips import constant_of, decides_by_index, trip_count
from onnx_cfad.graph.work import work_of
from onnx_cfad.names import ADJOINT
from onnx_cfad.options import Options
from onnx_cfad.plan.plan import Decision, Plan, adjoint_from, plan_from_json
from onnx_cfad.plan.schedule import Schedule, best_segment
from onnx_cfad.plan.without_effect import without_effect

_LARGE_CARRY = 1 << 20  # bytes: from here a third level pays
_LONG = 100_000  # iterations
_KEPT_PART = 12  # products are kept for a replay where they are at most this part of what a full tape keeps
_TIGHT = {ir.DataType.FLOAT: 1e-5, ir.DataType.DOUBLE: 1e-9}  # tolerances of loops that are implicit unasked
_FEW = 4  # iterations: up to here a loop written out creates its session no slower


def choose_adjoints(sites: ControlFlowGraph, options: Options, profile: Profile | None = None) -> Plan:
    """The adjoint of every Loop, Scan and If: automatic, one kind for all loops, a plan file, or site by site.

    Args:
        sites: The control flow.
        options: What the user asks for.
        profile: What real runs did.

    Raises:
        PlanError: A site that was named does not exist, or cannot be run backwards as asked.
    """
    asked = _asked(sites, options)
    for site in sites.sites():
        if ADJOINT in site.node.metadata_props and options.plan in ("auto", "implicit"):
            asked.setdefault(site.path, adjoint_from(site.node.metadata_props[ADJOINT]))
    budget = options.memory
    trips = _measured(sites, profile)
    decisions: dict[str, Decision] = {}
    tapes = {site.path: _full_tape(site, options, asked, trips) for site in _outermost(sites)}
    tops = sorted(_outermost(sites), key=lambda site: -tapes[site.path])
    total = sum(tapes.values())
    for top in tops:
        full = tapes[top.path]
        fits = total <= budget
        held = full if fits else max(budget // max(len(tops), 1), 1)
        _decide(top, options, asked, decisions, budget=held, measured=trips)
        total -= 0 if fits else full
    used = sum(decisions[top.path].bytes or 0 for top in tops)
    _Branches(options, asked, decisions, profile, trips, budget - used).region(sites.root, 1, in_loop=False)
    ordered = {site.path: decisions[site.path] for site in sites.sites() if _known(site)}
    warnings = without_effect(sites, options, ordered)
    if profile is None:
        return Plan(ordered, warnings=warnings)
    return Plan(ordered, tuple(profile.hottest()), tuple(profile.never_taken()), warnings)


def _measured(sites: ControlFlowGraph, profile: Profile | None) -> Measured:
    """The most iterations that each loop ran for in one execution, as far as a profile knows."""
    counts = profile.loops if profile is not None else {}
    found = {site.node: counts[site.path] for site in sites.sites() if site.path in counts}
    return {node: count.most for node, count in found.items() if count.executions}


def _known(site: Site) -> bool:
    return is_loop(site.node) or is_branch(site.node)


def _asked(sites: ControlFlowGraph, options: Options) -> dict[str, Adjoint]:
    """What the user said about single sites."""
    asked = plan_from_json(options.plan_text) if options.plan_text is not None else {}
    for entry in options.sites:
        path, _, text = entry.partition("=")
        asked[path] = adjoint_from(text)
    known = {site.path: site for site in sites.sites()}
    for path, adjoint in asked.items():
        if path not in known:
            listed = ", ".join(known) or "none"
            raise PlanError(
                f"site '{path}'", f"the model has no such control-flow site; it has {listed}", "See `inspect`."
            )
        node = known[path].node
        if is_branch(node) != isinstance(adjoint, (Routed, Masked)):
            raise PlanError(
                f"site '{path}'", f"{type(adjoint).__name__.lower()} is not for {node.op_type}", "See `plan`."
            )
        reason = why_not_masked(branch_site(node)) if isinstance(adjoint, Masked) else None
        if reason is not None:
            raise PlanError(f"site '{path}'", f"it cannot be masked: {reason}", "Choose routed.")
    return asked


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


def _full_tape(site: Site, options: Options, asked: Mapping[str, Adjoint], measured: Measured) -> int:
    if isinstance(asked.get(site.path), Implicit) or (site.path not in asked and _implicit(site, options) is not None):
        return 0
    cost = loop_cost(site.node, options.trips, measured)
    return cost.trips * cost.iteration


def _decide(
    site: Site, options: Options, asked: Mapping[str, Adjoint], decisions: dict[str, Decision], budget: int,
    measured: Measured,
) -> None:  # fmt: skip
    """Decides for a loop and the loops inside it, within ``budget`` bytes."""
    cost = loop_cost(site.node, options.trips, measured)
    decision = _loop(site, cost, options, asked.get(site.path), budget)
    known = loop_cost(site.node, options.trips, measured, unknown=0)
    certain = _bytes(decision.adjoint, known, site, unknown=0)
    decisions[site.path] = _told(decision, certain, unsized=known.iteration < cost.iteration)
    adjoint = decision.adjoint
    held = max(cost.trips, 1)
    if isinstance(adjoint, Implicit):
        held = 1
    if isinstance(adjoint, Checkpointed):
        held = adjoint.segment or best_length(max(cost.trips, 1))
    for inner in (s for region in site.regions for s in _loops_in(region.sites)):
        _decide(inner, options, asked, decisions, max(budget // max(held, 1), 1), measured)


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


def _loop(site: Site, cost: LoopCost, options: Options, asked: Adjoint | None, budget: int) -> Decision:
    full = cost.trips * cost.iteration
    number = f"{cost.trips:,} trips" + (" assumed" if cost.assumed else "")
    if asked is not None:
        return Decision(asked, _bytes(asked, cost, site), "as asked")
    implicit = _implicit(site, options)
    if implicit is not None:
        return implicit
    loop = loop_site(site.node)
    few = trip_count(loop)
    short = few.static is not None and few.static <= _FEW and not few.conditional
    if options.plan == "auto" and short and decides_by_index(loop):
        return Decision(Unrolled(), None, f"{few.static} iterations whose choices the iteration number makes")
    automatic = options.plan in ("auto", "implicit")
    if options.plan == "taped" or (automatic and full <= budget):
        why = "as asked" if options.plan == "taped" else f"the full tape fits: {number}"
        return Decision(Taped(options.tape), full, why)
    if options.plan == "unrolled":
        return Decision(Unrolled(), None, "as asked")
    adjoint = _checkpointed(site, cost, options)
    reason = "as asked" if options.plan == "checkpointed" else f"the full tape takes {full:,} bytes ({number})"
    return Decision(adjoint, _bytes(adjoint, cost, site), reason)


def _implicit(site: Site, options: Options) -> Decision | None:
    """The implicit adjoint, for a fixed point that is asked for or that is so tight that nothing differs but time."""
    if options.plan not in ("auto", "implicit") or (options.plan == "auto" and options.clip_carries):
        return None
    point = find_fixed_point(loop_site(site.node))
    tests = tests_in(point.condition) if point.condition is not None else []
    tight = bool(tests) and all(_is_tight(test.threshold) for test in tests)
    if not point.found or (options.plan == "auto" and not tight):
        return None
    adjoint = Implicit(fallback=options.implicit_fallback or "checkpointed")
    return Decision(adjoint, _held(site), f"{point}; its initial value gets no gradient where it converges")


def _held(site: Site, unknown: int = UNKNOWN_SHAPE) -> int:
    """Bytes of a loop's results, which are all that an implicit gradient keeps of it."""
    return sum(bytes_of(c.final, unknown) for c in loop_site(site.node).carries if carries_derivative(c.final))


def _is_tight(threshold: ir.Value) -> bool:
    """Whether a tolerance is a constant that leaves no more error than a gradient has anyway."""
    constant = constant_of(threshold)
    if constant is None or threshold.dtype is None:
        return False
    return bool((constant <= _TIGHT.get(threshold.dtype, 0.0)).all())


def _checkpointed(site: Site, cost: LoopCost, options: Options) -> Checkpointed:
    deep = options.levels is None and cost.carry >= _LARGE_CARRY and cost.trips >= _LONG
    levels = options.levels or (3 if deep else 2)
    keep = "products" if 0 < _kept(site) <= cost.iteration // _KEPT_PART else ""
    if options.segment is not None:
        return Checkpointed(options.segment, levels, options.tape, keep)
    fixed = trip_count(loop_site(site.node)).static is not None
    if not fixed and levels == 2:
        return Checkpointed(0, levels, options.tape, keep)
    segment = best_segment(cost.trips, cost.carry, cost.iteration, divides=fixed, levels=levels)
    return Checkpointed(segment, levels, options.tape, keep)


def _kept(site: Site) -> int:
    """Bytes of an iteration's products that are dear to compute again."""
    return sum(map(bytes_of, dear_products(loop_site(site.node).body)))


def _bytes(adjoint: Adjoint, cost: LoopCost, site: Site, unknown: int = UNKNOWN_SHAPE) -> int | None:
    if isinstance(adjoint, Unrolled):
        return None
    if isinstance(adjoint, Implicit):
        return _held(site, unknown)
    if isinstance(adjoint, Checkpointed):
        segment = adjoint.segment or best_length(max(cost.trips, 1))
        kept = cost.trips * _kept(site) if adjoint.keep else 0
        return kept + Schedule(cost.trips, segment, adjoint.levels).peak_bytes(cost.carry, cost.iteration)
    return cost.trips * cost.iteration


@dataclasses.dataclass(frozen=True)
class BranchRules:
    """What decides between the forms of a branch on one target.

    Attributes:
        masked: Operations of both branches together up to which both are computed and a mask selects.
        hot: Share of executions from which a branch counts as the hot one.
        why: The reason, for the plan.
    """

    masked: float
    hot: float
    why: str


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
"""The cost rules by target. Saved residuals are faster than recomputed ones wherever they fit the memory: measured 5 to
25 % of the whole, inside loops and outside."""


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

    def region(self, region: Region, held: int, *, in_loop: bool) -> None:
        """Decides for the branches of ``region``, of which ``held`` executions are kept at one time."""
        for site in region.sites:
            inner = held
            if is_branch(site.node):
                self.decisions[site.path] = self.decide(site, held, in_loop=in_loop)
            elif site.path in self.decisions:
                inner = held * self.iterations(site)
            for part in site.regions:
                self.region(part, inner, in_loop=in_loop or is_loop(site.node))

    def iterations(self, site: Site) -> int:
        """Iterations of a loop that are on the tape at one time."""
        adjoint = self.decisions[site.path].adjoint
        trips = max(loop_cost(site.node, self.options.trips, self.measured).trips, 1)
        if isinstance(adjoint, Checkpointed):
            return min(adjoint.segment or best_length(trips), trips)
        return trips

    def decide(self, site: Site, held: int, *, in_loop: bool) -> Decision:
        branch = branch_site(site.node)
        decision = self.decide_by(site, held, self.sizes(branch), in_loop=in_loop)
        mask = held if in_loop else 0
        known = self.sizes(branch, unknown=0)
        certain = _branch_bytes(decision.adjoint, known, held, mask, in_loop=in_loop)
        return _told(decision, certain, unsized=known != self.sizes(branch))

    def sizes(self, branch: BranchSite, unknown: int = UNKNOWN_SHAPE) -> list[int]:
        """Bytes of the residuals of each branch."""
        return [tape_bytes(graph, self.options.trips, self.measured, unknown) for graph in branch.branches]

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
        adjoint, reason = self.routed(site.path, sizes, held, in_loop=in_loop)
        found = _branch_bytes(adjoint, sizes, held, mask, in_loop=in_loop)
        self.left -= 0 if in_loop else found  # the tape of a loop has its branches in it
        notes = [reason, f"not masked: {unmaskable}" if unmaskable else "", _per_element(branch)]
        return Decision(adjoint, found, "; ".join(note for note in notes if note))

    def routed(self, path: str, sizes: list[int], held: int, *, in_loop: bool) -> tuple[Routed, str]:
        """What is done with the residuals, ``sizes`` bytes of them in each branch, and why."""
        counts = self.profile.branches.get(path) if self.profile is not None else None
        fits = max(sizes) * held <= (self.options.memory if in_loop else self.left)
        if not fits:
            return Routed("recomputed"), f"its residuals would take {max(sizes) * held:,} bytes"
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


def _branch_bytes(adjoint: Adjoint, sizes: list[int], held: int, mask: int, *, in_loop: bool) -> int:
    """Bytes that the record of a branch takes: the mask, and the residuals of the larger branch that saves them."""
    if not isinstance(adjoint, Routed):
        return mask + held * sum(sizes)
    saves = RESIDUALS[adjoint.residuals] or (not in_loop, not in_loop)
    return mask + held * max(size if save else 0 for size, save in zip(sizes, saves, strict=True))


def _per_element(branch: BranchSite) -> str:
    vector = reduced_vector(branch.predicate)
    return "" if vector is None else f"its predicate reduces '{vector.name}', which could be a mask for each element"
