"""The options of a transformation, frozen; the command line and the Python functions share them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onnx_cfad.errors import ModelError, PlanError
from onnx_cfad.given import flag, listed, name_of, names_of, number, one_of, shown, whole


@dataclasses.dataclass(frozen=True)
class Initializers:
    """Stands for every trainable initializer in ``wrt``."""

    def __repr__(self) -> str:
        return "INITIALIZERS"


INITIALIZERS: Final = Initializers()

MODES: Final = ("reverse", "forward", "hvp")
"""Gradients from cotangents; tangents of outputs; tangents of the gradients of a loss."""

TARGETS: Final = ("ort", "llvm", "cuda", "ascend")
"""What a plan can be made for."""

TAPES: Final = ("", "float16", "bfloat16")
"""Element types of a tape: the values' own, or one of these."""

FALLBACKS: Final = ("checkpointed", "nan", "none")
"""What a loop that is run backwards implicitly does where it did not converge."""

LONGEST: Final = 10**12
"""Iterations that a segment or a loop may have in a plan."""

MOST_LEVELS: Final = 8
"""Levels of checkpoints."""

MOST_BYTES: Final = 2**63 - 1
"""Bytes that a plan can be told to keep to."""


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
        for name, form in _FORMS.items():
            given: object = getattr(self, name)
            if given is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, form(name, given))

    @classmethod
    def of(
        cls,
        wrt: Sequence[str | Initializers] | Initializers | str | None,
        outputs: Sequence[str] | str | None = None,
        loss: str | None = None,
        stop_gradient: Sequence[str] = (),
    ) -> Options:
        """Options from the loose forms that the Python functions take."""
        entries = [] if wrt is None else [wrt] if isinstance(wrt, Initializers) else listed("wrt", wrt)
        every = any(isinstance(entry, Initializers) for entry in entries)
        names = names_of("wrt", [entry for entry in entries if not isinstance(entry, Initializers)])
        chosen = None if outputs is None else names_of("outputs", outputs)
        for name, given in (("wrt", None if wrt is None else entries), ("outputs", chosen)):
            if given is not None and not given:
                raise ModelError(name, "nothing is named", "Leave it out for all that are floating point.")
        return cls(None if wrt is None else names, every, chosen, loss, names_of("stop_gradient", stop_gradient))


def seed_count(text: str | None) -> int | str | None:
    """``seeds`` from the command line: a number where it is one, else a name."""
    try:
        return text if text is None else int(text)
    except ValueError:
        return text


def _seeds(name: str, given: object) -> int | str:
    if isinstance(given, str):
        if not (given.isidentifier() and given.isascii()):
            raise ModelError(f"{name} {shown(given)}", "expected a whole number from 1 up, or the name of a dimension")
        return str(given)
    return whole(name, given, 1, 2**31 - 1, remedy="It may also be the name of a dimension.")


def _limit(name: str, given: object) -> float:
    return number(name, given, remedy="Leave it out for no clipping.", error=PlanError)


_FORMS: Final[Mapping[str, Callable[[str, object], object]]] = {
    **dict.fromkeys(("wrt", "outputs", "stop_gradient", "straight_through", "sites"), names_of),
    "loss": name_of,
    **dict.fromkeys(("wrt_initializers", "implicit_outputs", "clip_carries", "replace_nan"), flag),
    **dict.fromkeys(("segment", "trips"), functools.partial(whole, least=0, most=LONGEST, error=PlanError)),
    "levels": functools.partial(whole, least=2, most=MOST_LEVELS, error=PlanError),
    "memory": functools.partial(whole, least=0, most=MOST_BYTES, error=PlanError),
    "tape": functools.partial(one_of, known=TAPES, error=PlanError),
    "implicit_fallback": functools.partial(one_of, known=("", *FALLBACKS), error=PlanError),
    "target": functools.partial(one_of, known=TARGETS, error=PlanError),
    **dict.fromkeys(("clip_value", "clip_norm"), _limit),
    "seeds": _seeds,
    "mode": functools.partial(one_of, known=MODES),
}
"""How the options are taken that a caller gives as they are; the others are texts that the pipeline has read."""

_MAY_BE_NONE: Final = {"wrt", "outputs", "loss", "segment", "levels", "clip_value", "clip_norm", "seeds"}
