"""A plan: how every control-flow site is run backwards, what that is expected to cost, and why."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.masked import Masked
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.errors import PlanError
from onnx_cfad.given import shown
from onnx_cfad.nearest import did_you_mean

_KINDS: dict[str, type[Adjoint]] = {
    "taped": Taped,
    "checkpointed": Checkpointed,
    "implicit": Implicit,
    "routed": Routed,
    "masked": Masked,
    "unrolled": Unrolled,
}
_WORDS = ("tape", "keep", "residuals", "solver", "fallback", "forward")  # settings that are no numbers
_READ: dict[str, Callable[[str], Any]] = {**dict.fromkeys(_WORDS, str), "tol": float}
_WRITTEN = re.compile(r"(?P<kind>[a-z]+)(\((?P<settings>[^)]*)\))?")


@dataclasses.dataclass(frozen=True)
class Decision:
    """The adjoint of one site.

    Attributes:
        adjoint: How it is run backwards.
        bytes: Tape bytes expected at the worst moment; None where nothing is taped.
        reason: Why.
        certain: The part of ``bytes`` that known shapes make, where values of unknown shape count too.
    """

    adjoint: Adjoint
    bytes: int | None
    reason: str
    certain: int | None = None

    @property
    def told(self) -> int | str | None:
        """``bytes`` as it is told: a number, or that it is unknown, or at least a number."""
        if self.certain is None or self.certain == self.bytes:
            return self.bytes
        return f"at least {self.certain}" if self.certain else "unknown"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Decisions by site path. It can be printed, written as JSON, edited by hand and given back.

    Attributes:
        decisions: The decision for each Loop, Scan and If.
        hot: With a profile: the branches that were taken, the most often taken first. A target compiles them in this
            order.
        cold: With a profile: the branches that no run took. A target compiles them on first use.
        warnings: Options that were given and decide nothing; not part of the JSON that is given back.
    """

    decisions: Mapping[str, Decision]
    hot: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, path: str) -> Adjoint:
        return self.decisions[path].adjoint

    def __contains__(self, path: str) -> bool:
        return path in self.decisions

    def __iter__(self) -> Iterator[str]:
        return iter(self.decisions)

    def __str__(self) -> str:
        lines = [f"{path}: {written(d.adjoint)} ({d.reason})" for path, d in self.decisions.items()]
        lines += [f"never taken: {', '.join(self.cold)}"] if self.cold else []
        return "\n".join(lines) or "no control flow"

    def to_json(self, *, with_warnings: bool = False) -> str:
        """The plan as JSON text, sites in model order; ``with_warnings`` also what it warns of."""
        sites = {
            path: {"adjoint": written(d.adjoint), "bytes": d.told, "reason": d.reason}
            for path, d in self.decisions.items()
        }
        branches = {"hot": list(self.hot), "cold": list(self.cold)} if self.hot or self.cold else None
        further = {"branches": branches} if branches else {}
        further |= {"warnings": list(self.warnings)} if with_warnings else {}
        return json.dumps({"version": 1, "sites": sites, **further}, indent=2)


def plan_from_json(text: str, where: str = "plan") -> dict[str, Adjoint]:
    """The adjoints by path in a plan written by ``Plan.to_json`` (and maybe edited); ``where`` it is from, for errors.

    Raises:
        PlanError: The text is not a plan.
    """
    try:
        return _adjoints(json.loads(text, object_pairs_hook=_object))
    except (ValueError, RecursionError) as error:
        raise PlanError(
            where, f"expected the JSON that `onnx-cfad plan` writes, found something else ({error})", "Write it anew."
        ) from error


def branches_from_json(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The branches that are hot, in their order, and those that are cold in a plan written by ``Plan.to_json``.

    Raises:
        PlanError: The text is not a plan.
    """
    plan_from_json(text)
    found: Any = json.loads(text).get("branches", {})
    listed: list[Any] = [found.get(key, []) if isinstance(found, dict) else None for key in ("hot", "cold")]
    for paths in listed:
        if not isinstance(paths, list) or not all(isinstance(p, str) and p.endswith(("/then", "/else")) for p in paths):
            what = f"its branches, hot and cold, are {paths}, expected lists of paths"
            raise PlanError("plan", what, "Such as main/if_0/then.")
    hot, cold = listed
    return tuple(hot), tuple(cold)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no key stands twice: the second would decide without a word."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"a key '{next(name for name in names if names.count(name) > 1)}' twice")
    return dict(pairs)


def _adjoints(plan: Any) -> dict[str, Adjoint]:
    version, sites = _entry(plan, "version", "a plan"), _entry(plan, "sites", "a plan")
    if isinstance(version, bool) or version != 1:
        raise ValueError(f"version {version}, not 1")
    if not isinstance(sites, dict):
        raise ValueError("sites that are no object")  # noqa: TRY004 - JSON of another form
    found: dict[str, Adjoint] = {}
    for path, entry in sites.items():
        adjoint = _entry(entry, "adjoint", f"site '{path}'")
        unknown = sorted(set(entry) - {"adjoint", "bytes", "reason"})
        if unknown:
            raise ValueError(f"a key '{unknown[0]}'; settings belong to the adjoint, as in checkpointed(segment=25)")
        found[path] = adjoint_from(str(adjoint))
    return found


def _entry(held: Any, key: str, where: str) -> Any:
    """What a JSON object has under ``key``."""
    if not isinstance(held, dict) or key not in held:
        raise ValueError(f"{where} without '{key}'")
    return held[key]


def written(adjoint: Adjoint) -> str:
    """An adjoint as a user writes it, such as ``checkpointed(segment=25,levels=2)``."""
    kind = type(adjoint).__name__.lower()
    named = {f.name: (getattr(adjoint, f.name), f.default) for f in dataclasses.fields(adjoint)}
    brief = isinstance(adjoint, Implicit)  # what is left at its default goes without saying
    shown = {n: v for n, (v, default) in named.items() if v not in ("", "auto") and not (brief and v == default)}
    settings = [f"{name}={_as_text(value)}" for name, value in shown.items()]
    return f"{kind}({','.join(settings)})" if settings else kind


def _as_text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def adjoint_from(text: str) -> Adjoint:
    """The adjoint that ``written`` writes as ``text``.

    Raises:
        PlanError: There is no such adjoint, or it has no such setting.
    """
    match = _WRITTEN.fullmatch(text.replace(" ", "").lower())
    kind = _KINDS.get(match["kind"]) if match else None
    if match is None or kind is None:
        example, word = "For example checkpointed(segment=25).", text.partition("(")[0].strip()
        remedy = example if word in _KINDS else did_you_mean(word, _KINDS, example)
        raise PlanError(f"adjoint {shown(text)}", f"expected one of {', '.join(_KINDS)}", remedy)
    settings = [part.partition("=")[::2] for part in (match["settings"] or "").split(",") if part]
    names = [f.name for f in dataclasses.fields(kind)]
    for name, value in settings:
        if name not in names:
            what = f"'{name}' is none of its settings, which are {', '.join(names) or 'none'}"
            raise PlanError(f"adjoint {shown(text)}", what, "For example checkpointed(segment=25).")
        if [other for other, _ in settings].count(name) > 1:
            raise PlanError(f"adjoint {shown(text)}", f"{name} is given twice", "Give it once.")
        if not _readable(_READ.get(name, int), value):
            number = "a number" if _READ.get(name) is float else "a whole number"
            raise PlanError(
                f"adjoint {shown(text)}", f"{name} is {shown(value)}, expected {number}", "For example segment=25."
            )
    return kind(**{name: _READ.get(name, int)(value) for name, value in settings})


def _readable(read: Callable[[str], Any], value: str) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True
