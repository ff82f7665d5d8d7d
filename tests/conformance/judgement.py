"""Whether a conformance model is differentiated right: its gradient against differences of the model."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import ModelProto

import onnx_cfad as cfad
from onnx_cfad.errors import CfadError, ModelError, TargetError
from onnx_cfad.numeric.differences import Outcome
from onnx_cfad.numeric.evaluators import EPSILON, choose_evaluator
from onnx_cfad.numeric.rows import Checker, Extent, Point
from onnx_cfad.numeric.widen import widen
from onnx_cfad.runtime import Session
from onnx_cfad.verdict import Row
from tests.conformance.examples import FLOATS, Example
from tests.execution import run_in_reference
from tests.oracle import check_emitted

Feeds = Mapping[str, Any]
Rows = Sequence[Row]
Comparison = Callable[[Feeds], tuple[Rows, str]]

MOVES = 10
"""Points that are tried beside the one of the case, where something cannot be told there."""

OLDER_OPSETS = (25, 21, 18)
"""What a model is stamped as, where it is valid there, when ONNX Runtime has no kernel of its own opset."""

DRAWN = frozenset(("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"))
HOMOGENEOUS = frozenset(("Constant", "Dropout"))
EXTENT = Extent(directions=3, every_element_up_to=64, rtol=None)


class Verdict(enum.Enum):
    """What became of a model."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"
    UNTOLD = "not told"
    NOT_LOADED = "not loaded"


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What became of a model, and how that was found.

    Attributes:
        name: The model.
        verdict: What became of it.
        reason: Why it is not right, or what else to know.
        error: The worst error of a gradient, relative to its size.
        tolerance: The error that this gradient may have.
        method: What it was compared with.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    error: float = 0.0
    tolerance: float = 0.0
    method: str = ""


def judge(example: Example) -> Judgement:
    """Differentiates a model by all of its float inputs and compares; where one is refused, by the others."""
    try:
        gradient = cfad.vjp(example.model, wrt=cfad.INITIALIZERS if example.by_weights else None)
    except CfadError as error:
        refused = Judgement(example.name, Verdict.REFUSED, _one_line(str(error)))
        return _with_the_other_inputs(example, refused)
    return _judged_by(example, gradient)


def _with_the_other_inputs(example: Example, refused: Judgement) -> Judgement:
    """The refusal, unless a gradient by the inputs that are not refused is wrong."""
    floats = [v.name for v in example.model.graph.input if v.type.tensor_type.elem_type in FLOATS]
    accepted = [name for name in floats if _is_accepted(example.model, name)]
    if not accepted:
        return refused
    found = _judged_by(example, cfad.vjp(example.model, wrt=accepted))
    if found.verdict is not Verdict.RIGHT:
        return found
    reason = f"{refused.reason.rstrip('.')}; the gradient by {', '.join(accepted)} is right"
    return dataclasses.replace(found, verdict=Verdict.REFUSED, reason=reason)


def _is_accepted(model: ModelProto, name: str) -> bool:
    try:
        cfad.vjp(model, wrt=[name])
    except CfadError:
        return False
    return True


def _judged_by(example: Example, gradient: cfad.Gradient) -> Judgement:
    """Compares a gradient of a model in ONNX Runtime, under an older opset, or in the reference evaluator."""
    if _is_valid(example.model):
        check_emitted(gradient.proto())
    refusal = _refusal(example)
    for opset in OLDER_OPSETS if refusal else ():
        older = _stamped(example, opset)
        if older is not None and not _refusal(older):
            found = _judged_by(older, cfad.vjp(older.model, wrt=gradient.report.wrt))
            return dataclasses.replace(found, method=f"{found.method}, as opset {opset}".removeprefix(", "))
    drawn = not DRAWN.isdisjoint(example.operators)
    if refusal and drawn:
        return Judgement(example.name, Verdict.NOT_LOADED, refusal)
    if drawn:
        return _judged_in_one_run(example, gradient)
    if refusal:
        return _judged_by_reference(example, gradient, refusal)
    return _judged_in_runtime(example, gradient)


def _refusal(example: Example) -> str:
    """Why ONNX Runtime does not run the model; empty when it does."""
    try:
        Session(example.model, threads=1).run(example.feeds)
    except TargetError as error:
        return _one_line(error.what)
    return ""


def _stamped(example: Example, opset: int) -> Example | None:
    """The same model as one of an older opset, if it is valid there."""
    model = ModelProto()
    model.CopyFrom(example.model)
    stamp = next((entry for entry in model.opset_import if entry.domain == ""), None)
    if stamp is None or stamp.version <= opset:
        return None
    stamp.version = opset
    return dataclasses.replace(example, model=model) if _is_valid(model) else None


def _is_valid(model: ModelProto) -> bool:
    """Whether the model itself passes the checks that an emitted one must pass."""
    try:
        check_emitted(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _judged_in_runtime(example: Example, gradient: cfad.Gradient) -> Judgement:
    """In ONNX Runtime; the differences in float64 where that can be had."""

    def compared(feeds: Feeds) -> tuple[Rows, str]:
        found = cfad.validate(example.model, gradient, feeds)
        assert all(row.holds for row in found.primal), found.primal_conclusion
        return found.rows, found.evaluator

    found = _judged(example, compared)
    return found if found.verdict is not Verdict.WRONG else _unless_rounding(example, gradient, found, compared)


def _judged_by_reference(example: Example, gradient: cfad.Gradient, refusal: str) -> Judgement:
    """In the reference evaluator, for a model that ONNX Runtime does not run."""
    try:
        found = _judged(example, _by_reference(example.model, gradient.proto()))
    except TargetError:
        return Judgement(example.name, Verdict.NOT_LOADED, refusal)
    return dataclasses.replace(found, reason=found.reason or f"not in ONNX Runtime: {refusal}")


def _judged_in_one_run(example: Example, gradient: cfad.Gradient) -> Judgement:
    """A model that draws: output and gradient of one run. Dropout is linear in x, so that <seed, y> = <gradient, x>."""
    if not HOMOGENEOUS.issuperset(example.operators):
        return Judgement(example.name, Verdict.UNTOLD, "draws random numbers: no two runs can be compared")
    data, result = example.model.graph.node[-1].input[0], example.model.graph.output[0].name
    session = Session(gradient.model, threads=1)
    x = example.feeds[data]
    seed = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)
    found = session.run({**example.feeds, f"{result}_grad": seed})
    terms = found[f"{data}_grad"].astype(np.float64) * x - seed.astype(np.float64) * found[result]
    error = float(np.abs(terms).max() / np.abs(seed * found[result]).max())
    verdict = Verdict.RIGHT if error < 1e-6 else Verdict.WRONG
    return Judgement(example.name, verdict, "", error, 1e-6, "the draw of the same run")


def _by_reference(model: ModelProto, gradient: ModelProto) -> Comparison:
    """The comparison of a gradient that the reference evaluator runs."""

    def compared(feeds: Feeds) -> tuple[Rows, str]:
        rng = np.random.default_rng(0)
        outputs = _run_in_reference(model, feeds)
        seeded = [i.name.removesuffix("_grad") for i in gradient.graph.input if i.name not in feeds]
        seeds = {
            name: np.asarray(rng.standard_normal(outputs[name].shape)).astype(outputs[name].dtype) for name in seeded
        }
        given = {f"{name}_grad": array for name, array in seeds.items()}
        results = _run_in_reference(gradient, {**feeds, **given})
        for name, value in outputs.items():
            assert np.asarray(results[name]).tobytes() == np.asarray(value).tobytes(), f"primal output {name} changed"
        evaluator = choose_evaluator(ir.from_proto(model), feeds, outputs, threads=1)
        checker = Checker(evaluator, {name: array.astype(np.float64) for name, array in seeds.items()}, EXTENT, rng)
        point = Point(feeds, results, moved=False)
        wanted = [name for name in results if name not in outputs]
        rows = [checker.row(n.removesuffix("_grad"), n.removesuffix("_grad"), results[n], point) for n in wanted]
        return rows, f"{evaluator.name}, gradient in the reference evaluator"

    return compared


def _run_in_reference(model: ModelProto, feeds: Feeds) -> dict[str, Any]:
    try:
        return run_in_reference(model, dict(feeds))
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise TargetError("the reference evaluator", f"{type(error).__name__} {error}") from error


def _judged(example: Example, compared: Comparison) -> Judgement:
    """By a comparison at the point of the case, and beside it until every gradient could be told."""
    rng = np.random.default_rng(1)
    told: dict[str, Row] = {}
    rows, method = compared(example.feeds)
    for attempt in range(MOVES):
        told.update({row.name: row for row in rows if row.name not in told and _is_told(row)})
        if len(told) == len(rows):
            break
        method = f"{method.removesuffix(_BESIDE)}{_BESIDE}"
        try:
            rows, _ = compared({name: _moved(value, rng, attempt) for name, value in example.feeds.items()})
        except (TargetError, ModelError):
            continue  # it does not run there, or an output has another shape than is declared
    worst = _worst(told.values())
    if worst is not None and worst.verdict is Outcome.WRONG:
        return Judgement(example.name, Verdict.WRONG, f"{worst.name}: {worst}", worst.error, worst.tolerance, method)
    untold = [row.name for row in rows if row.name not in told]
    reason = f"no difference quotient tells the gradient by {', '.join(untold)}" if untold else ""
    if worst is None:
        return Judgement(example.name, Verdict.UNTOLD, reason, method=method)
    verdict = Verdict.UNTOLD if untold else Verdict.RIGHT
    return Judgement(example.name, verdict, reason, worst.error, worst.tolerance, method)


_BESIDE = ", some beside the point"


def _is_told(row: Row) -> bool:
    return row.verdict in (Outcome.HOLDS, Outcome.WRONG)


def _worst(rows: Iterable[Row]) -> Row | None:
    """The row that is wrong, or is nearest to its tolerance."""
    return max(
        rows, key=lambda r: (r.verdict is Outcome.WRONG, r.error / r.tolerance if r.tolerance else 0.0), default=None
    )


def _moved(value: Any, rng: np.random.Generator, attempt: int) -> Any:
    """``value`` moved where it is floating point, a little further in each attempt: up, down, or either way."""
    array = np.asarray(value)
    if isinstance(value, list) or array.dtype.name not in EPSILON:
        return value
    noise = rng.standard_normal(array.shape)
    noise = (noise, np.abs(noise), -np.abs(noise))[attempt % 3]
    wide = array.astype(np.float64)
    size = np.where(np.isfinite(wide) & (wide != 0), np.abs(wide), 1)
    return np.asarray(wide + 0.02 * (1 + attempt // 3) * size * noise).astype(array.dtype)


def _unless_rounding(example: Example, gradient: cfad.Gradient, wrong: Judgement, compared: Comparison) -> Judgement:
    """A gradient that rounding spoils is right when it is in float64, and in its own type at a tenth of the inputs."""
    wide = ir.from_proto(example.model)
    if not widen(wide):
        return wrong
    proto = ir.to_proto(wide)
    exact = dataclasses.replace(
        example, model=proto, feeds={name: _scaled(value, 1.0, np.float64) for name, value in example.feeds.items()}
    )
    tenth = dataclasses.replace(example, feeds={name: _scaled(value, 0.1) for name, value in example.feeds.items()})
    try:
        in_float64 = _judged(exact, _by_reference(proto, cfad.vjp(proto, wrt=gradient.report.wrt).proto()))
    except TargetError:
        return wrong
    if in_float64.verdict is not Verdict.RIGHT or _judged(tenth, compared).verdict is not Verdict.RIGHT:
        return wrong
    reason = f"in float32 rounding spoils it at the point of the case (error {wrong.error:.0e}), not at a tenth of it"
    return dataclasses.replace(in_float64, reason=reason)


def _scaled(value: Any, factor: float, dtype: Any = None) -> Any:
    array = np.asarray(value)
    return (array * factor).astype(dtype or array.dtype) if array.dtype.kind == "f" else value


def _one_line(text: str) -> str:
    return textwrap.shorten(text, 240, placeholder=" ...")
