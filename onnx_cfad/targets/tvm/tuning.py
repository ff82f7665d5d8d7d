"""Schedules of compiled bodies, searched by MetaSchedule within a number of seconds over all of them.

Every body has been compiled with TVM's own schedules before, so whatever happens here, there is a library. A body's
share of what is left is the share of its time (calls times seconds a call) in that of all that wait. A library with the
schedules that were found replaces the other one where it is faster.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.base import Array, Limits, Tell
from onnx_cfad.targets.tvm.signatures import Signature
from onnx_cfad.targets.tvm.step import Step

_SLICE = 5.0  # seconds of a search between two reports
_LEAST = 0.5  # seconds of a search that are worth its start
_GAIN = 0.95  # of the time: a library that is faster than that is kept
_GRACE = 5.0  # seconds after its end that a search may take, for a candidate that is being measured
_PART_TO_CHOOSE, _MOST_TO_CHOOSE = 0.2, 5.0  # of a share, and seconds, that are left to compile and time what was found
_TIMES = 5  # calls that are timed


@dataclasses.dataclass(frozen=True)
class Tunable:
    """A compiled body.

    Attributes:
        name: What it is called.
        model: The ONNX file that it was compiled from.
        library: What it was compiled to.
        inputs: The names of its inputs.
        signature: What it was compiled for.
        calls: Its calls in a run of the sample inputs.
        given: Inputs to time it with; default: made up.
    """

    name: str
    model: Path
    library: Path
    inputs: tuple[str, ...]
    signature: Signature
    calls: int
    given: tuple[Array, ...] | None = None

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its inputs by name."""
        return {name: list(shape) for name, (_, shape, _) in zip(self.inputs, self.signature, strict=True)}

    def arrays(self) -> dict[str, Array]:
        """Inputs to time it with: given ones, or numbers around zero, zeros for integers, guarded values."""
        if self.given is not None:
            return {str(k): array for k, array in enumerate(self.given)}
        rng = np.random.default_rng(0)
        return {str(k): _array(rng, *entry) for k, entry in enumerate(self.signature)}


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What became of a body: microseconds a call before and after, candidates that were tried, and why it stayed."""

    name: str
    before_us: float
    after_us: float
    trials: int
    failed: int
    kept: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a search has found.

    Attributes:
        seconds: What it was given.
        spent: What it took.
        bodies: The bodies, in the order of the search.
        complete: No body was left without its share, because of an error.
    """

    seconds: float
    spent: float
    bodies: tuple[Tuned, ...]
    complete: bool

    def note(self) -> str:
        """The outcome in words."""
        faster = [body for body in self.bodies if not body.kept]
        if not self.bodies:
            return f"nothing to tune in {self.seconds:g} s: no body with kernels of its own"
        best = max((body.before_us / body.after_us for body in faster), default=1.0)
        trials = sum(body.trials for body in self.bodies)
        told = f", the most {best:.1f} times" if faster else ""
        return (
            f"tuned for {self.spent:.0f} of {self.seconds:g} s, {trials} candidates: "
            f"{len(faster)} of {len(self.bodies)} bodies are faster{told}"
        )


def tune(bodies: Sequence[Tunable], seconds: float, step: Step, tell: Tell) -> Outcome:
    """Searches schedules for ``bodies``, in their order, and puts faster libraries in the place of theirs.

    Args:
        bodies: What has been compiled.
        seconds: What all searches may take together, with compiling and timing what they find.
        step: The worker.
        tell: Called with what is being done.
    """
    start = time.monotonic()
    search = _Search(step, start + seconds, tell)
    waiting = [(body, search.timed(body, body.library)) for body in bodies]
    found: list[Tuned] = []
    for number, (body, before) in enumerate(waiting):
        weights = [before * max(body.calls, 1) for body, before in waiting[number:]]
        share = search.left() * weights[0] / (sum(weights) or 1.0)
        found.append(search.tuned(body, before, share, f"{number + 1} of {len(waiting)}"))
    return Outcome(seconds, round(time.monotonic() - start, 1), tuple(found), not search.faults)


class _Search:
    """The searches of one compilation, until a deadline."""

    def __init__(self, step: Step, deadline: float, tell: Tell) -> None:
        self.step, self.deadline, self.tell = step, deadline, tell
        self.faults: list[str] = []

    def left(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)

    def within(self, grace: float = 0.0) -> Step:
        """The worker, with no more time than is left."""
        seconds = min(self.step.limits.seconds, max(self.left(), 1.0) + grace)
        return Step(self.step.worker, self.step.options, Limits(seconds, self.step.limits.memory_bytes))

    def timed(self, body: Tunable, library: Path) -> float:
        """Seconds of a call."""
        answer, _ = self.within(_GRACE).call("run_library", {"library": str(library), "repeat": _TIMES}, body.arrays())
        return float(min(answer["seconds"]))

    def tuned(self, body: Tunable, before: float, share: float, place: str) -> Tuned:
        """What a search of ``share`` seconds makes of a body."""
        trials = failed = 0

        def stays(reason: str) -> Tuned:
            return Tuned(body.name, before * 1e6, before * 1e6, trials, failed, reason)

        if share < _LEAST:
            return stays("the time was up, or its part in it too small")
        end = time.monotonic() + share - min(_PART_TO_CHOOSE * share, _MOST_TO_CHOOSE)
        with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as folder:
            try:
                seed = 0
                while (left := min(end, self.deadline) - time.monotonic()) > _LEAST:
                    seed += 1
                    self.tell(f"tuning {place}, {body.name}: {trials} candidates, {self.left():.0f} s left")
                    answer = self.search(body, folder, min(left, _SLICE), seed)
                    trials, failed = trials + answer["trials"], failed + answer["failed"]
                if trials == failed:
                    return stays("no candidate could be measured" if trials else "no candidate was found")
                library = body.library.with_name(f".{body.library.stem}.tuned.so")
                try:
                    found = self.chosen(body, before, library, folder)
                    if found is None:
                        return stays("no candidate was faster")
                    return dataclasses.replace(found, trials=trials, failed=failed)
                finally:
                    library.unlink(missing_ok=True)
            except TargetError as error:
                self.faults.append(error.what)
                return stays(error.what)

    def search(self, body: Tunable, folder: str, seconds: float, seed: int) -> dict[str, Any]:
        arguments = {"model": str(body.model), "shapes": body.shapes, "folder": folder, "seconds": seconds}
        return self.within(_GRACE).call("search_schedules", {**arguments, "seed": seed})[0]

    def chosen(self, body: Tunable, before: float, library: Path, folder: str) -> Tuned | None:
        """The body with the schedules of ``folder``, where that is faster; None where it is not."""
        step = self.within(_GRACE)
        with_schedules = Step(step.worker, {**step.options, "schedules": folder}, step.limits)
        arguments = {"model": str(body.model), "library": str(library), "shapes": body.shapes}
        with_schedules.call("compile_model", arguments)
        after = self.timed(body, library)
        again = min(before, self.timed(body, body.library))
        if after > _GAIN * again:
            return None
        library.replace(body.library)
        return Tuned(body.name, again * 1e6, after * 1e6, 0, 0)


def _array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], values: tuple[int, ...] | None) -> Array:
    if values is not None:
        return np.asarray(values, dtype).reshape(shape)
    if np.dtype(dtype).kind != "f":
        return np.zeros(shape, dtype)
    return rng.standard_normal(shape).astype(dtype)
