"""Which branches of a model are hot, and which no run takes: from a profile, or from the plan of a gradient.

A profile is of the model itself, or of the primal that it was differentiated from; a gradient names the hash of that
one, and each of its Ifs the path of the primal's If that it is of. Without a profile the plan that the gradient carries
says the same, where it was made with one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.errors import PlanError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.graph.profile import Profile, profile_from_json
from onnx_cfad.graph.regions import control_flow, is_branch
from onnx_cfad.graph.site_marks import mark, marked
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.model import fingerprint, normalise
from onnx_cfad.options import Options
from onnx_cfad.simplify import simplify_branches

_PLAN = "onnx_cfad.plan"


@dataclasses.dataclass(frozen=True)
class BranchOrder:
    """The sides of branches, such as ``main/if_0/then``, by the paths that their Ifs are marked with.

    Attributes:
        origin: What says so, in words; "" where nothing does.
        hot: Sides that were taken, the most often taken first.
        cold: Sides that no run took.
        counts: How often each side was taken, where that is known.
    """

    origin: str = ""
    hot: tuple[str, ...] = ()
    cold: frozenset[str] = frozenset()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])


def branch_order(model: ir.Model, profile: str | None) -> BranchOrder:
    """What is known of the branches of ``model``, whose Ifs are marked with their paths where it lacks them.

    Args:
        model: The model, as it was loaded.
        profile: The JSON text of a profile.

    Raises:
        PlanError: It is no profile, or one of another model.
    """
    if profile is None:
        return _planned(model)
    own, source = fingerprint(model), model.metadata_props.get("onnx_cfad.source")
    found = profile_from_json(profile, own, source)
    if found.model == own:
        _mark_own(model)
    return BranchOrder("the profile", tuple(found.hottest()), frozenset(found.never_taken()), _counts(found))


def _planned(model: ir.Model) -> BranchOrder:
    """What the plan of a gradient says."""
    text = model.metadata_props.get(_PLAN, "{}")
    try:
        branches = json.loads(text).get("branches", {"hot": [], "cold": []})
        hot, cold = tuple(map(str, branches["hot"])), frozenset(map(str, branches["cold"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        where = f"metadata '{_PLAN}' of the model"
        raise PlanError(where, "it is not what transform writes", "Differentiate the primal anew.") from error
    return BranchOrder("the gradient's plan", hot, cold) if hot or cold else BranchOrder()


def _counts(profile: Profile) -> dict[str, int]:
    pairs = [(path, count) for path, count in profile.branches.items()]
    return {**{f"{p}/then": c.then for p, c in pairs}, **{f"{p}/else": c.otherwise for p, c in pairs}}


def _mark_own(model: ir.Model) -> None:
    """Marks Ifs with the paths that a profile of this model has for them: those of its simplified form."""
    branches = [node for node in nodes_of(model.graph) if is_branch(node)]
    for number, node in enumerate(branches):
        mark(node, str(number))
    simplified = expand_training(normalise(model.clone()))
    simplify_branches(simplified, Options())
    sites = [site for site in control_flow(simplified).sites() if is_branch(site.node)]
    paths = {marked(site.node): site.path for site in sites}
    for number, node in enumerate(branches):
        mark(node, paths.get(str(number)))
