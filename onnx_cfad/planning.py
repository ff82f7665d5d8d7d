"""The plan a user asks for, as options; and the plan of a model, without differentiating it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from onnx_cfad.collector import resting_collector
from onnx_cfad.defaults import set_defaults_aside
from onnx_cfad.errors import PlanError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.given import shown
from onnx_cfad.graph.profile import Profile, check_profile, profile_from_json
from onnx_cfad.graph.regions import control_flow
from onnx_cfad.graph.types import Types
from onnx_cfad.model import fingerprint, normalise
from onnx_cfad.nearest import did_you_mean
from onnx_cfad.options import Options
from onnx_cfad.plans.choose import choose_adjoints
from onnx_cfad.plans.plan import Plan, plan_from_json
from onnx_cfad.preparation import prepare_sites
from onnx_cfad.rewriters.hoist import HoistInvariantsPass
from onnx_cfad.simplify import simplify_branches
from onnx_cfad.sizes import number_of_bytes

PLANS = ("auto", "taped", "checkpointed", "implicit", "unrolled")
"""The plans that have a name."""


@resting_collector()
def plan_model(source: ir.Model, options: Options) -> Plan:
    """The plan for ``source``, which is consumed: how each of its sites would be run backwards, and why.

    Raises:
        ModelError: The model is unusable.
        PlanError: The options ask for the impossible, or the profile is of another model.
    """
    profile = profile_for(options, fingerprint(source))
    model = expand_training(normalise(source))
    set_defaults_aside(model)
    types = simplify_branches(model, options)
    plan = choose_adjoints(control_flow(model), types, options, profile)
    if any(decision.reason == "as asked" for decision in plan.decisions.values()):
        _try_to_prepare(model, types, plan)
    return plan


def _try_to_prepare(model: ir.Model, types: Types, plan: Plan) -> None:
    """Refuses a plan that cannot be followed, by following it as far as sites are rewritten; consumes the model."""
    HoistInvariantsPass()(model)
    prepare_sites(model, types, control_flow(model), plan)


def profile_for(options: Options, model: str) -> Profile | None:
    """The profile that ``options`` name, for the model of that hash.

    Raises:
        PlanError: It is no profile, or one of another model.
    """
    return None if options.profile is None else profile_from_json(options.profile, model)


def with_plan(
    options: Options,
    plan: str | os.PathLike[str] | Plan = "auto",
    *,
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    tape: str | None = None,
    implicit_fallback: str | None = None,
    memory: str | int | None = None,
    trips: int | None = None,
    target: str | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
) -> Options:
    """Options with a plan as the command line takes it; None leaves what ``options`` have.

    Args:
        options: The other options.
        plan: ``auto``, ``taped``, ``checkpointed``, ``implicit``, ``unrolled``, the path of a plan's
            JSON, or a ``Plan``.
        sites: ``PATH=ADJOINT`` for single sites.
        segment: Iterations in a segment.
        levels: Levels of a checkpointed loop.
        tape: ``float16`` or ``bfloat16`` for a tape of half the bytes.
        implicit_fallback: What an implicit loop does where it did not converge: ``checkpointed``, ``nan``, ``none``.
        memory: Bytes that tapes may take, such as ``512MiB``, or their number.
        trips: Iterations to assume where the model does not say.
        target: What the plan is made for.
        profile: What real runs did: a ``Profile``, or the path of its JSON.

    Raises:
        PlanError: The plan is no such word and no readable file, the memory is no number, there is no such target, or
            the profile is no readable file.
    """
    _check_kind("plan", plan, Plan)
    named = isinstance(plan, str) and plan in PLANS
    changes = {
        "plan": plan if named else "auto",
        "plan_text": None if named else plan.to_json() if isinstance(plan, Plan) else _plan_text(Path(plan)),
        "target": target,
        "profile": profile_text(profile),
        "sites": sites,
        "segment": segment,
        "levels": levels,
        "tape": tape,
        "implicit_fallback": implicit_fallback,
        "memory": None if memory is None else number_of_bytes(memory),
        "trips": trips,
    }
    return dataclasses.replace(options, **{name: value for name, value in changes.items() if value is not None})


def _check_kind(name: str, given: object, kinds: type | tuple[type, ...]) -> None:
    """Refuses what is neither the path of a file nor of ``kinds``."""
    if not isinstance(given, (str, os.PathLike)) and not isinstance(given, kinds):
        raise PlanError(name, f"expected the path of a file or a {name.title()}, found {shown(given)}", "Leave it out.")


def _plan_text(path: Path) -> str:
    remedy = did_you_mean(str(path), PLANS, "There is no such file.")
    text = _text("plan", path, f"expected {', '.join(PLANS)} or the file of a plan", remedy)
    plan_from_json(text, f"plan '{path}'")  # an error names the file
    return text


def profile_text(profile: str | os.PathLike[str] | Profile | None) -> str | None:
    """The JSON text of a profile, or of the file of one; None for none.

    Raises:
        PlanError: There is no such file, or it cannot be read.
    """
    _check_kind("profile", profile, (Profile, type(None)))
    if profile is None or isinstance(profile, Profile):
        return None if profile is None else profile.to_json()
    text = _text("profile", Path(profile), "there is no such file", "Write one with `onnx-cfad profile -o`.")
    check_profile(text, f"profile '{Path(profile)}'")  # an error names the file
    return text


def _text(kind: str, path: Path, missing: str, remedy: str) -> str:
    """The text of a file; ``missing`` and ``remedy`` are for one that is not there."""
    try:
        if not path.is_file():
            if path.is_dir() and str(path) != ".":  # which is what an empty name is
                raise PlanError(f"{kind} '{path}'", "is a directory", f"Name the file that `onnx-cfad {kind}` wrote.")
            raise PlanError(f"{kind} '{path}'", missing, remedy)
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{kind} '{path}'", f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        what = f"expected the JSON that `onnx-cfad {kind}` writes, found a file that is no text"
        raise PlanError(f"{kind} '{path}'", what, "Name another file.") from error
