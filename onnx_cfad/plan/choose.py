"""The automatic choice: how each control-flow site is run backwards. Every such decision is made in this file.

Policy: keep everything while the tapes fit the memory that was given, else checkpoint the loop with the largest tape,
then the next one. A branch is run backwards by its recorded predicate.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.cost import LoopCost, bytes_of, loop_cost
from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.regions import ControlFlowGraph, Site, is_branch, is_loop, loop_site
from onnx_cfad.graph.trips import decides_by_index, trip_count
from onnx_cfad.options import Options
from onnx_cfad.plan.plan import Decision, Plan, adjoint_from, plan_from_json
from onnx_cfad.plan.schedule import Schedule, best_segment

_LARGE_CARRY = 1 << 20  # bytes: from here a third level pays
_LONG = 100_000  # iterations
_KEPT_PART = 12  # products are kept for a replay where they are at most this part of what a full tape keeps
_FEW = 4  # iterations: up to here a loop written out creates its session no slower


def choose_adjoints(sites: ControlFlowGraph, options: Options) -> Plan:
    """The adjoint of every Loop, Scan and If: automatic, one kind for all loops, a plan file, or site by site.

    Raises:
        PlanError: A site that was named does not exist, or cannot be run backwards as asked.
    """
    asked = _asked(sites, options)
    budget = options.memory
    decisions: dict[str, Decision] = {}
    tops = sorted(_outermost(sites), key=lambda site: -_full_tape(site, options))
    total = sum(_full_tape(site, options) for site in tops)
    for top in tops:
        full = _full_tape(top, options)
        fits = total <= budget
        _decide(top, options, asked, decisions, budget=full if fits else max(budget // max(len(tops), 1), 1))
        total -= 0 if fits else full
    ordered = {site.path: decisions.get(site.path) or _branch(site, asked) for site in sites.sites() if _known(site)}
    return Plan(ordered)


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
        if is_branch(known[path].node) != isinstance(adjoint, Routed):
            kind = known[path].node.op_type
            raise PlanError(f"site '{path}'", f"{type(adjoint).__name__.lower()} is not for {kind}", "See `plan`.")
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


def _full_tape(site: Site, options: Options) -> int:
    cost = loop_cost(site.node, options.trips)
    return cost.trips * cost.iteration


def _decide(
    site: Site, options: Options, asked: Mapping[str, Adjoint], decisions: dict[str, Decision], budget: int
) -> None:
    """Decides for a loop and the loops inside it, within ``budget`` bytes."""
    cost = loop_cost(site.node, options.trips)
    decision = _loop(site, cost, options, asked.get(site.path), budget)
    decisions[site.path] = decision
    adjoint = decision.adjoint
    held = max(cost.trips, 1)
    if isinstance(adjoint, Checkpointed):
        held = adjoint.segment or best_length(max(cost.trips, 1))
    for inner in (s for region in site.regions for s in _loops_in(region.sites)):
        _decide(inner, options, asked, decisions, max(budget // max(held, 1), 1))


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
    loop = loop_site(site.node)
    few = trip_count(loop)
    short = few.static is not None and few.static <= _FEW and not few.conditional
    if options.plan == "auto" and short and decides_by_index(loop):
        return Decision(Unrolled(), None, f"{few.static} iterations whose choices the iteration number makes")
    if options.plan == "taped" or (options.plan == "auto" and full <= budget):
        why = "as asked" if options.plan == "taped" else f"the full tape fits: {number}"
        return Decision(Taped(options.tape), full, why)
    if options.plan == "unrolled":
        return Decision(Unrolled(), None, "as asked")
    adjoint = _checkpointed(site, cost, options)
    reason = "as asked" if options.plan == "checkpointed" else f"the full tape takes {full:,} bytes ({number})"
    return Decision(adjoint, _bytes(adjoint, cost, site), reason)


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


def _bytes(adjoint: Adjoint, cost: LoopCost, site: Site) -> int | None:
    if isinstance(adjoint, Unrolled):
        return None
    if isinstance(adjoint, Checkpointed):
        segment = adjoint.segment or best_length(max(cost.trips, 1))
        kept = cost.trips * _kept(site) if adjoint.keep else 0
        return kept + Schedule(cost.trips, segment, adjoint.levels).peak_bytes(cost.carry, cost.iteration)
    return cost.trips * cost.iteration


def _branch(site: Site, asked: Mapping[str, Adjoint]) -> Decision:
    return Decision(asked.get(site.path, Routed()), None, "by the recorded predicate")
