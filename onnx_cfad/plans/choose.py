"""The automatic choice: how each control-flow site is run backwards.

Every such decision is made in this file, but for fixed points (``implicit_choice``) and branches (``branch_choice``).

Policy: keep everything while the tapes fit the memory that was given, else checkpoint the loop with the largest tape,
then the next one, with as few levels as fit. What a tape keeps of an iteration is a matter of bytes against operations:
its residuals, or its carries alone where the rest is many bytes and few operations. A branch is run backwards by its
recorded predicate, with its residuals saved where they fit; where the target has no cheap branches, both sides are
computed and a mask selects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length, kept_in_sequences
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.segments import LONGEST_SEQUENCE
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import NODE_BUDGET, Unrolled
from onnx_cfad.graph.cost import UNKNOWN_SHAPE, LoopCost, Measured, Planned, loop_cost
from onnx_cfad.graph.profile import Profile
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import ControlFlowGraph, LoopSite, Site, is_branch, is_loop, loop_site
from onnx_cfad.graph.trips import decides_by_index, trip_count
from onnx_cfad.graph.types import Types
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.graph.work import work_of
from onnx_cfad.options import MOST_LEVELS, Options
from onnx_cfad.plans.asked import asked_adjoints, asked_branches
from onnx_cfad.plans.branch_choice import Branches
from onnx_cfad.plans.implicit_choice import implicit_choice
from onnx_cfad.plans.over_memory import over_memory
from onnx_cfad.plans.plan import Decision, Plan
from onnx_cfad.plans.schedule import best_segment, least_segment
from onnx_cfad.plans.tape_sizes import (
    MANY,
    OPERATIONS,
    bytes_kept,
    kept_products,
    tape_type,
    taped_bytes,
    widest_of,
    with_certain,
)  # fmt: skip
from onnx_cfad.plans.without_effect import without_effect

_LARGE_CARRY = 1 << 20  # bytes: from here a third level pays
_LONG = 100_000  # iterations
_KEPT_PART = 12  # products are kept for a replay where they are at most this part of what a full tape keeps
# A tape of MANY bytes keeps carries alone where an iteration has _TIMES_THE_CARRY their bytes and a residual takes at
# most OPERATIONS a byte (Tanh of float32: 2.5). Measured, chains of four such functions over 256 to 65,536 elements:
# 0.5 to 0.9 of the time in a first run, 0.9 later, a quarter to a half of the memory. Of two: 1.15 of the time later.
_TIMES_THE_CARRY = 5
_NEAR = 1.25  # a level more is a forward pass more: where nothing fits, bytes by the least that are worth none
_LEVELS_OF_A_NEST = 12  # of all its loops together: each one is a few messages deeper in the file (``message_depth``)
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
    trips = _measured(sites, profile)
    tops = _loops_in(sites.root.sites)
    loops = _Loops(options, asked, trips, types, _nests(tops))
    loops.decide_all(tops, options.memory)
    decisions = loops.decisions
    used = sum(decisions[top.path].bytes or 0 for top in tops)
    Branches(options, asked, decisions, profile, trips, options.memory - used).region(sites.root, 1)
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


@dataclasses.dataclass
class _Loops:
    """Decides for the loops of a model.

    Attributes:
        options: The options.
        asked: What the user said about single sites.
        measured: Iterations of loops, from the profile.
        types: What is known of shapes.
        nests: How many loops lie inside each other at most, by the path of each of them.
        decisions: Those made so far.
        leasts: Bytes that loops take at least, as far as they were asked for.
    """

    options: Options
    asked: Mapping[str, Adjoint]
    measured: Measured
    types: Types
    nests: Mapping[str, int]
    decisions: dict[str, Decision] = dataclasses.field(default_factory=dict[str, Decision])
    leasts: dict[str, int] = dataclasses.field(default_factory=dict[str, int])

    def full_tape(self, site: Site) -> int:
        """Bytes of the tape of a loop, were there memory for it."""
        if isinstance(self.asked.get(site.path), Implicit) or (
            site.path not in self.asked and implicit_choice(site, self.options) is not None
        ):
            return 0
        cost = self.cost(site)
        return taped_bytes(self.taped(site, cost), cost)

    def cost(self, site: Site, unknown: int = UNKNOWN_SHAPE, inside: Planned | None = None) -> LoopCost:
        """The sizes of a loop, with the tape that it will have; loops inside keep a full tape or what is ``inside``."""
        tape = tape_type(self.asked.get(site.path, Taped(self.options.tape)))
        return loop_cost(site.node, self.options.trips, self.measured, unknown, widest_of(tape), inside)

    def decide_all(self, loops: Sequence[Site], budget: int) -> None:
        """Decides for loops whose tapes are there at one time, the largest first, within ``budget`` bytes together."""
        tapes = {site.path: self.full_tape(site) for site in loops}
        rest = sum(tapes.values())
        for place, site in enumerate(sorted(loops, key=lambda site: -tapes[site.path])):
            rest -= tapes[site.path]
            self.decide(site, max(budget - rest, budget // (len(loops) - place), 1))
            budget -= self.decisions[site.path].bytes or 0

    def decide(self, site: Site, budget: int) -> None:
        """Decides for a loop and the loops inside it, within ``budget`` bytes."""
        cost, known, inner = self.cost(site), self.cost(site, unknown=0), _loops_inside(site)
        decision = self.loop(site, cost, budget)
        left = self.left_inside(site, decision, cost, budget)
        if cost.iteration - self.cost(site, inside={s.node: 0 for s in inner}).iteration <= left:
            for each in inner:  # those of two branches are not there at one time
                self.decide(each, max(left, 1))
        else:
            self.decide_all(inner, left)
        found = {s.node: self.decisions[s.path] for s in inner if self.decisions[s.path].bytes is not None}
        if inner and decision.bytes is not None:
            real = self.cost(site, inside={node: chosen.bytes or 0 for node, chosen in found.items()})
            decision = dataclasses.replace(decision, bytes=bytes_kept(decision.adjoint, real, site))
        sure = self.cost(site, 0, {node: chosen.certain or 0 for node, chosen in found.items()}) if inner else known
        certain = bytes_kept(decision.adjoint, sure, site, unknown=0)
        self.decisions[site.path] = with_certain(decision, certain, unsized=known.iteration < cost.iteration)

    def left_inside(self, site: Site, decision: Decision, cost: LoopCost, budget: int) -> int:
        """Bytes that are left of ``budget`` for the loops inside one iteration."""
        adjoint, held = decision.adjoint, max(cost.trips, 1)
        if isinstance(adjoint, Implicit):
            return budget
        if isinstance(adjoint, Checkpointed):
            held = min(adjoint.segment or best_length(held), held)
        if decision.reason == "as asked" or decision.bytes is None:
            return budget // max(held, 1)
        own = self.cost(site, inside={s.node: 0 for s in _loops_inside(site)})
        return (budget - (bytes_kept(adjoint, own, site) or 0)) // max(held, 1)

    def least(self, site: Site) -> int:
        """Bytes that a loop takes with as many levels of checkpoints as help."""
        if site.path not in self.leasts:
            cost = self.cost(site, inside=self.least_inside(site))
            sizes = [bytes_kept(way, cost, site) for way in self.ways(site, cost)]
            self.leasts[site.path] = min((size for size in sizes if size is not None), default=self.full_tape(site))
        return self.leasts[site.path]

    def least_inside(self, site: Site) -> Planned:
        """``least`` of the loops inside a loop."""
        return {inner.node: self.least(inner) for inner in _loops_inside(site)}

    def ways(self, site: Site, cost: LoopCost) -> list[Adjoint]:
        """All ways that a loop may be decided."""
        decision = self.loop(site, cost, 0)
        if decision.reason == "as asked" or not isinstance(decision.adjoint, Checkpointed):
            return [decision.adjoint]
        return [self.taped(site, cost), *self.checkpoints(site, cost)]

    def loop(self, site: Site, cost: LoopCost, budget: int) -> Decision:
        """The decision for one loop."""
        options, asked = self.options, self.asked.get(site.path)
        number = f"{cost.trips:,} trips" + (" assumed" if cost.assumed else "")
        if asked is not None:
            return Decision(asked, bytes_kept(asked, cost, site), "as asked")
        implicit = implicit_choice(site, options)
        if implicit is not None:
            return implicit
        loop = loop_site(site.node)
        few = trip_count(loop)
        nodes = _FEW ** self.nests[site.path] * len(nodes_of(loop.body))  # where loops inside are written out too
        short = few.static is not None and few.static <= _FEW and not few.conditional and nodes <= NODE_BUDGET
        if options.plan == "auto" and short and decides_by_index(loop):
            return Decision(Unrolled(), None, f"{few.static} iterations whose choices the iteration number makes")
        if options.plan == "taped":
            return Decision(Taped(options.tape), cost.trips * cost.iteration, "as asked")
        if options.plan == "unrolled":
            return Decision(Unrolled(), None, "as asked")
        taped = self.taped(site, cost)
        full = taped_bytes(taped, cost)
        long = cost.trips > LONGEST_SEQUENCE and self.tapes_in_sequence(loop)
        if options.plan in ("auto", "implicit") and full <= budget and not long:
            kept = "the full tape fits" if not taped.keep else "the tape of its carries fits, the rest is cheap"
            return Decision(taped, full, f"{kept}: {number}")
        adjoint = self.checkpointed(site, cost, budget)
        why = f"the full tape takes {full:,} bytes ({number})"
        if long:
            why = f"its tape is a sequence, which takes time by the square of its length ({number})"
        return Decision(adjoint, bytes_kept(adjoint, cost, site), "as asked" if options.plan == "checkpointed" else why)

    def taped(self, site: Site, cost: LoopCost) -> Taped:
        """The full tape of a loop: of its residuals, or of its carries where these are few bytes beside the rest."""
        body = loop_site(site.node).body
        residuals = cost.iteration - cost.taped_carry
        many = cost.trips * cost.iteration >= MANY and cost.iteration >= _TIMES_THE_CARRY * cost.taped_carry
        if self.options.plan == "taped" or not many or any(subgraphs_of(node) for node in body):
            return Taped(self.options.tape)
        sized = all(o.shape is not None and o.shape.is_static() for node in body for o in node.outputs)
        cheap = sized and work_of(body, self.options.trips, self.measured) <= OPERATIONS * residuals
        return Taped(self.options.tape, "carry" if cheap else "")

    def tapes_in_sequence(self, loop: LoopSite) -> bool:
        """Whether a tape of the loop is a sequence that checkpoints can make shorter: a tensor carry varies in shape.

        The loop has to be one that can be replayed: no optional carry, and no draws whose shape may vary too. A carry
        that is a sequence itself takes square time in the forward pass already, and its elements are stacked.
        """
        optional = any(isinstance(c.entry.type, ir.OptionalType) for c in loop.carries)
        replayable = all(map(is_pure, loop.body)) and not optional
        return replayable and any(isinstance(v.type, ir.TensorType) for v in kept_in_sequences(loop, self.types))

    def checkpointed(self, site: Site, cost: LoopCost, budget: int) -> Checkpointed:
        """The checkpoints of a loop: the first that fit, else the first that take hardly more than the least."""
        ways = self.checkpoints(site, cost)
        if self.options.plan == "checkpointed" or self.options.levels is not None:
            return ways[0]
        least = self.cost(site, inside=self.least_inside(site))
        ways += [way for way in self.checkpoints(site, least) if way not in ways]
        ways.sort(key=lambda way: way.levels)
        sizes = [bytes_kept(way, least, site) or 0 for way in ways]
        enough = max(budget, int(_NEAR * min(sizes)) if min(sizes) > budget else 0)
        return next(way for way, size in zip(ways, sizes, strict=True) if size <= enough)

    def checkpoints(self, site: Site, cost: LoopCost) -> list[Checkpointed]:
        """The checkpoints that a loop may have, by what is computed again: in few levels, then in more."""
        options, loop = self.options, loop_site(site.node)
        most = LONGEST_SEQUENCE if kept_in_sequences(loop, self.types) else None
        deep = cost.carry >= _LARGE_CARRY and cost.trips >= _LONG
        deep = deep or (most is not None and cost.trips > most * most)
        first = options.levels or (3 if deep else 2)
        kept = 0 < kept_products(site) <= cost.iteration // _KEPT_PART
        fixed = trip_count(loop).static is not None
        found: list[Checkpointed] = []
        alone = options.levels is not None or options.segment == 0
        most_levels = first if alone else max(first, min(MOST_LEVELS, _LEVELS_OF_A_NEST // self.nests[site.path]))
        for levels in range(first, most_levels + 1):
            segments = [options.segment or 0]
            if options.segment is None:
                sizes = cost.trips, cost.carry, cost.iteration
                best = best_segment(*sizes, divides=fixed and most is None, levels=levels)
                segments = [0 if not fixed and levels == 2 else best, least_segment(*sizes, levels=levels)]
                segments = [min(segment, most or segment) for segment in segments]
            keeps = ("products", "") if kept else ("",)
            found += [Checkpointed(segment, levels, options.tape, keep) for keep in keeps for segment in segments]
        return list(dict.fromkeys(found))


def _loops_inside(site: Site) -> list[Site]:
    return [inner for region in site.regions for inner in _loops_in(region.sites)]


def _loops_in(sites: tuple[Site, ...]) -> list[Site]:
    found: list[Site] = []
    for site in sites:
        found += [site] if is_loop(site.node) else [s for region in site.regions for s in _loops_in(region.sites)]
    return found


def _nests(loops: Sequence[Site], above: int = 0) -> dict[str, int]:
    """How many loops lie inside each other at most, ``above`` of them outside of ``loops``, by each path."""
    found: dict[str, int] = {}
    for loop in loops:
        inside = _loops_inside(loop)
        found |= _nests(inside, above + 1)
        found[loop.path] = max((found[inner.path] for inner in inside), default=above + 1)
    return found
