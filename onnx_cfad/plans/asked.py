"""What the user decided about single sites, which no automatic choice changes."""

from __future__ import annotations

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.masked import Masked
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.profile import Profile
from onnx_cfad.graph.regions import ControlFlowGraph, branch_site, is_branch
from onnx_cfad.names import ADJOINT
from onnx_cfad.nearest import did_you_mean
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import adjoint_from, branches_from_json, plan_from_json


def asked_adjoints(sites: ControlFlowGraph, options: Options) -> dict[str, Adjoint]:
    """The adjoints by path that a plan file, ``--site`` or a mark on a site of the model asks for.

    Raises:
        PlanError: A site that was named does not exist, or cannot be run backwards as asked.
    """
    asked = plan_from_json(options.plan_text) if options.plan_text is not None else {}
    named: dict[str, Adjoint] = {}
    for entry in options.sites:
        path, _, text = entry.partition("=")
        if not path or not text:
            raise PlanError(f"site '{entry}'", "expected PATH=ADJOINT", "For example main/loop=checkpointed.")
        adjoint = adjoint_from(text)
        if named.setdefault(path, adjoint) != adjoint:
            raise PlanError(f"site '{path}'", "two adjoints are asked for", "Name it once.")
    asked |= named
    known = {site.path: site for site in sites.sites()}
    for path, adjoint in asked.items():
        if path not in known:
            remedy = did_you_mean(path, known, "See `inspect`.")
            what = f"the model has no such control-flow site; it has {', '.join(known) or 'none'}"
            raise PlanError(f"site '{path}'", what, remedy)
        node = known[path].node
        if is_branch(node) != isinstance(adjoint, (Routed, Masked)):
            raise PlanError(
                f"site '{path}'", f"{type(adjoint).__name__.lower()} is not for {node.op_type}", "See `plan`."
            )
        reason = why_not_masked(branch_site(node)) if isinstance(adjoint, Masked) else None
        if reason is not None:
            raise PlanError(f"site '{path}'", f"it cannot be masked: {reason}", "Choose routed.")
    for site in known.values():
        if ADJOINT in site.node.metadata_props and options.plan in ("auto", "implicit"):
            asked.setdefault(site.path, adjoint_from(site.node.metadata_props[ADJOINT]))
    return asked


def asked_branches(options: Options, profile: Profile | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The branches that are hot, in their order, and the cold ones: by a profile, else by a plan file that has them.

    Raises:
        PlanError: What the plan file has for branches are none.
    """
    if profile is not None:
        return tuple(profile.hottest()), tuple(profile.never_taken())
    return branches_from_json(options.plan_text) if options.plan_text is not None else ((), ())
