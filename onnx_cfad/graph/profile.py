"""What real runs did: how often each branch was taken, how often each loop ran, and how long each region took."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from onnx_cfad.errors import PlanError

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class BranchCount:
    """How often an If took its then-branch and its else-branch, over all runs and iterations."""

    then: int
    otherwise: int

    @property
    def executions(self) -> int:
        """How often the If was reached."""
        return self.then + self.otherwise

    def never_taken(self) -> str | None:
        """The side that was never taken although the If was reached: "then" or "else"."""
        if self.executions == 0 or (self.then and self.otherwise):
            return None
        return "else" if self.then else "then"


@dataclasses.dataclass(frozen=True)
class LoopCount:
    """How often a Loop or Scan was reached, the iterations of all that together, and the most of one time."""

    executions: int
    iterations: int
    most: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """Counts and times of the control-flow sites of one model, by path.

    Attributes:
        model: Hash of the model that was run.
        runs: Inputs that it was run on.
        branches: Outcomes of each If.
        loops: Trip counts of each Loop and Scan.
        seconds: Time spent in each region (without the regions inside it), in seconds a run.
    """

    model: str
    runs: int
    branches: Mapping[str, BranchCount]
    loops: Mapping[str, LoopCount]
    seconds: Mapping[str, float]

    def never_taken(self) -> list[str]:
        """The branches that no run took, such as ``main/if_0/else``."""
        found = [(path, count.never_taken()) for path, count in self.branches.items()]
        return [f"{path}/{side}" for path, side in found if side is not None]

    def hottest(self) -> list[str]:
        """The branches that were taken, the most often taken first: the order to compile them in."""
        counts = [
            (count, f"{path}/{side}")
            for path, branch in self.branches.items()
            for side, count in (("then", branch.then), ("else", branch.otherwise))
        ]
        return [path for count, path in sorted(counts, key=lambda entry: -entry[0]) if count]

    def to_json(self) -> str:
        """The profile as JSON text."""
        return json.dumps({"version": _VERSION, **dataclasses.asdict(self)}, indent=2)


def profile_from_json(text: str, model: str, source: str | None = None) -> Profile:
    """The profile that ``Profile.to_json`` wrote as ``text``.

    Args:
        text: The JSON text.
        model: Hash of the model that it is to be used for.
        source: Hash of the model that this one was differentiated from, which it may be of too.

    Raises:
        PlanError: The text is no profile, or one of another model.
    """
    try:
        found = _profile(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_profile("profile", error) from error
    if found.model not in (model, source):
        own = f"not of this one ({model[:12]})"
        own += f", nor of the one that it was differentiated from ({source[:12]})" if source else ""
        raise PlanError("profile", f"it is of another model ({found.model[:12]}), {own}", "Profile this model.")
    return found


def check_profile(text: str, where: str) -> None:
    """Refuses a text that is no profile; ``where`` says what it was read from.

    Raises:
        PlanError: It is none.
    """
    try:
        _profile(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_profile(where, error) from error


def _no_profile(where: str, error: Exception) -> PlanError:
    """The error for a text that is no profile."""
    detail = f"there is no {error}" if isinstance(error, KeyError) else error
    what = f"expected the JSON that `onnx-cfad profile` writes, found something else ({detail})"
    return PlanError(where, what, "Profile anew.")


def _profile(data: Any) -> Profile:
    if data["version"] != _VERSION or isinstance(data["version"], bool):
        raise ValueError(f"version {data['version']}, not {_VERSION}")
    branches = {path: BranchCount(_count(c["then"]), _count(c["otherwise"])) for path, c in data["branches"].items()}
    loops = {
        path: LoopCount(*(_count(c[key]) for key in ("executions", "iterations", "most")))
        for path, c in data["loops"].items()
    }
    seconds = {path: float(value) for path, value in data["seconds"].items()}
    return Profile(str(data["model"]), _count(data["runs"]), branches, loops, seconds)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
