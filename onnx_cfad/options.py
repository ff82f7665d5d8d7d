"""The options of a transformation, frozen; the command line and the Python functions share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from onnx_cfad.errors import ModelError

Entry = TypeVar("Entry")


@dataclasses.dataclass(frozen=True)
class Initializers:
    """Stands for every trainable initializer in ``wrt``."""

    def __repr__(self) -> str:
        return "INITIALIZERS"


INITIALIZERS: Final = Initializers()

MODES: Final = ("reverse", "forward", "hvp")
"""Gradients from cotangents; tangents of outputs; tangents of the gradients of a loss."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What to differentiate, and how.

    Attributes:
        wrt: Names of graph inputs, initializers, or constants inside branches (``scope/path:name``); None for every
            floating-point graph input.
        wrt_initializers: Also every floating-point initializer that reaches a differentiated output.
        outputs: Names of the outputs to differentiate; None for every floating-point output.
        loss: Name of a scalar output whose cotangent is fixed to 1, instead of ``outputs`` and seeds.
        stop_gradient: Names of values that count as constants.
        straight_through: Operators whose straight-through estimator stands in for their derivative.
        plan: "auto", or the one adjoint for all loops: "taped", "checkpointed", "implicit" or "unrolled".
        plan_text: A plan as JSON; what it does not decide is automatic.
        sites: Decisions for single sites, each ``path=adjoint``.
        segment: Iterations in a segment of a checkpointed loop; None for the best length.
        levels: Levels of a checkpointed loop; None for the best number.
        tape: Element type that wider values are taped in: "" for their own, "float16" or "bfloat16".
        implicit_fallback: What a loop run backwards implicitly does where it did not converge: "checkpointed", "nan" or
            "none"; "" for "checkpointed".
        implicit_outputs: Such loops also hand out whether they converged, a residual, and iterations of the solver.
        memory: Bytes that tapes may take, for the automatic choice.
        target: What the plan is made for: "ort", "llvm", "cuda" or "ascend".
        profile: What real runs did, as the JSON of a profile.
        trips: Trip count to assume where the model does not fix one, for the automatic choice.
        clip_value: Largest absolute value of an element of a gradient.
        clip_norm: Largest 2-norm of all gradients together.
        clip_carries: Clip the cotangent of every carry in every iteration too.
        replace_nan: Elements of gradients that are NaN become 0.
        seeds: How many seeds (tangents in forward mode) one run takes, as a leading axis: a number from 1 up, or the
            name of a dimension that the run decides; None for one without that axis.
        mode: "reverse", "forward" (tangents), or "hvp" (the tangents of the gradients of ``loss``).
    """

    wrt: tuple[str, ...] | None = None
    wrt_initializers: bool = False
    outputs: tuple[str, ...] | None = None
    loss: str | None = None
    stop_gradient: tuple[str, ...] = ()
    straight_through: tuple[str, ...] = ()
    plan: str = "auto"
    plan_text: str | None = None
    sites: tuple[str, ...] = ()
    segment: int | None = None
    levels: int | None = None
    tape: str = ""
    implicit_fallback: str = ""
    implicit_outputs: bool = False
    memory: int = 256 << 20
    target: str = "ort"
    profile: str | None = None
    trips: int = 1000
    clip_value: float | None = None
    clip_norm: float | None = None
    clip_carries: bool = False
    replace_nan: bool = False
    seeds: int | str | None = None
    mode: str = "reverse"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ModelError(f"mode '{self.mode}'", f"expected {', '.join(MODES)}")
        if not _counts_seeds(self.seeds):
            raise ModelError(f"seeds '{self.seeds}'", "expected a number from 1 up, or the name of a dimension")

    @classmethod
    def of(
        cls,
        wrt: Sequence[str | Initializers] | Initializers | str | None,
        outputs: Sequence[str] | str | None = None,
        loss: str | None = None,
        stop_gradient: Sequence[str] = (),
    ) -> Options:
        """Options from the loose forms that the Python functions take."""
        entries = [] if wrt is None else [wrt] if isinstance(wrt, Initializers) else _listed("wrt", wrt)
        every = any(isinstance(entry, Initializers) for entry in entries)
        names = names_of("wrt", [entry for entry in entries if not isinstance(entry, Initializers)])
        chosen = None if outputs is None else names_of("outputs", outputs)
        for name, given in (("wrt", None if wrt is None else entries), ("outputs", chosen)):
            if given is not None and not given:
                raise ModelError(name, "nothing is named", "Leave it out for all that are floating point.")
        if loss is not None:
            names_of("loss", [loss])
        return cls(None if wrt is None else names, every, chosen, loss, names_of("stop_gradient", stop_gradient))


def names_of(what: str, given: Sequence[str] | str) -> tuple[str, ...]:
    """The names that a caller gives, or the one.

    Raises:
        ModelError: They are no names, which Python lets a caller give.
    """
    entries: list[object] = list(_listed(what, given))
    names = tuple(entry for entry in entries if isinstance(entry, str))
    if len(names) != len(entries):
        wrong = next(entry for entry in entries if not isinstance(entry, str))
        raise ModelError(what, f"expected names, found {wrong!r}", "Give each as a str.")
    return names


def _listed(what: str, given: Iterable[Entry] | str) -> list[Entry | str]:
    if isinstance(given, str):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise ModelError(what, f"expected a name or several, found {given!r}", "Give each as a str.") from None


def is_whole(number: object) -> bool:
    """Whether it is a whole number: callers in Python may give what an annotation does not allow."""
    return isinstance(number, int) and not isinstance(number, bool)


def seed_count(text: str | None) -> int | str | None:
    """``seeds`` from the command line: a number where it is one, else a name."""
    try:
        return text if text is None else int(text)
    except ValueError:
        return text


def _counts_seeds(seeds: int | str | None) -> bool:
    if isinstance(seeds, str):
        return seeds.isidentifier() and seeds.isascii()
    return seeds is None or (is_whole(seeds) and 1 <= seeds < 2**31)
