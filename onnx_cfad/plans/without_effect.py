"""Options of a plan that decide nothing for the model at hand: told, so that nobody believes they did."""

from __future__ import annotations

from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch, is_loop, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import Decision


def without_effect(sites: ControlFlowGraph, options: Options, decisions: dict[str, Decision]) -> tuple[str, ...]:
    """A sentence for each option that was given and changes nothing."""
    loops = [site for site in sites.sites() if is_loop(site.node)]
    branches = any(is_branch(site.node) for site in sites.sites())
    kinds = {type(decisions[site.path].adjoint) for site in loops if site.path in decisions}
    unfixed = any(trip_count(loop_site(site.node)).static is None for site in loops)
    implicit = "no loop is implicit"
    automatic = any(decision.reason != "as asked" for decision in decisions.values())
    default, nothing = Options(), "the model has no loop" if not loops else ""
    told_plan = options.plan if options.plan != "auto" else "decided for every site"
    told = {
        "segment": (options.segment is not None, Checkpointed in kinds, "no loop is checkpointed"),
        "levels": (options.levels is not None, Checkpointed in kinds, "no loop is checkpointed"),
        "tape": (options.tape != default.tape, bool(kinds & {Taped, Checkpointed}), "no loop has a tape"),
        "memory": (options.memory != default.memory, automatic, f"the plan is {told_plan}"),
        "implicit_fallback": (options.implicit_fallback != default.implicit_fallback, Implicit in kinds, implicit),
        "implicit_outputs": (options.implicit_outputs, Implicit in kinds, implicit),
        "trips": (options.trips != default.trips, unfixed, "the model fixes every trip count"),
    }
    long = [
        f"{site.path}: a segment of {adjoint.segment:,} iterations holds all {trips:,} of the loop: nothing is saved"
        for site in loops
        if isinstance(adjoint := decisions[site.path].adjoint, Checkpointed)
        and (trips := trip_count(loop_site(site.node)).static) is not None
        and trips < adjoint.segment
        and (decisions[site.path].reason == "as asked" or options.segment is not None)
    ]
    return (
        *long,
        *(
            f"{name} has no effect: {nothing or reason}"
            for name, (given, decides, reason) in told.items()
            if given and not (decides and (loops or (name == "memory" and branches)))
        ),
    )
