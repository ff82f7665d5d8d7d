"""One gradient, or one primal output, compared at one point."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onnx_cfad.errors import TargetError
from onnx_cfad.given import number, whole
from onnx_cfad.numeric.differences import Accuracy, Comparison, Outcome, Sample, compare
from onnx_cfad.numeric.evaluators import EPSILON, Evaluator, smallest_normal
from onnx_cfad.ports import describe
from onnx_cfad.verdict import PrimalRow, Row

Array = np.ndarray[Any, Any]

GRADIENT_RTOL = {
    "float64": 1e-6,
    "float32": 1e-3,
    "float16": 5e-2,
    "bfloat16": 2e-1,
    "float8_e4m3fn": 0.25,
    "float8_e4m3fnuz": 0.25,
    "float8_e5m2": 0.5,
    "float8_e5m2fnuz": 0.5,
    "float4_e2m1fn": 0.5,
}
"""The relative error a gradient may have, by its element type."""

_DIFFERENCES_RTOL = {2.0**-53: 1e-6, 2.0**-24: 2e-2, 2.0**-11: 3e-1}
"""The relative error differences have, by the rounding error of what they are taken with."""

_ROUNDING = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""How far primal outputs may differ where the runtime fuses operators otherwise."""

_GROWTH = 20.0
"""How much more than the outputs rounding may move their derivatives (long loops in 16 bits)."""

_SECONDS_FOR_ELEMENTS = 10.0
_ENOUGH_WRONG = 3
_MOST_DIRECTIONS = 10_000


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much is checked.

    Attributes:
        directions: Random directions for each wrt.
        every_element_up_to: Largest number of elements to check one by one.
        rtol: Relative error that holds, between 0 and 1; None for one by element type.
        at_least: The least of the relative errors by element type: what a tape in fewer bits may cost.
    """

    directions: int
    every_element_up_to: int
    rtol: float | None
    at_least: float = 0.0

    def __post_init__(self) -> None:
        whole("directions", self.directions, 1, _MOST_DIRECTIONS)
        whole("every_element_up_to", self.every_element_up_to, 0)
        if self.rtol is not None:
            rtol = number("rtol", self.rtol, below=1, remedy="Leave it out: it goes by type.")
            object.__setattr__(self, "rtol", rtol)


@dataclasses.dataclass(frozen=True)
class Point:
    """Where gradients are compared.

    Attributes:
        feeds: Inputs of the original model, and the weights that are varied.
        outputs: What the gradient model gives.
        moved: It is not the point that was asked for.
    """

    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]
    moved: bool


class PrimalScalar:
    """The primal as a scalar function of its inputs: the sum of cotangents times outputs, less that at a point."""

    def __init__(self, evaluator: Evaluator, cotangents: Mapping[str, Array], feeds: Mapping[str, Any]) -> None:
        self._evaluator = evaluator
        self._cotangents = {name: np.asarray(ct, np.float64) for name, ct in cotangents.items()}
        self._feeds = feeds
        started = time.perf_counter()
        self._base = self._evaluated({})
        self.seconds = time.perf_counter() - started
        """Of one evaluation."""

    @property
    def defined(self) -> bool:
        """Whether the primal has a value at the point: none of its outputs is not a number."""
        return not any(np.isnan(output).any() for output in self._base.values())

    @property
    def blind(self) -> bool:
        """Whether there are outputs, but no element of them is finite: the sum cannot be told."""
        outputs = [output for output in self._base.values() if output.size]
        return bool(outputs) and not any(np.isfinite(output).any() for output in outputs)

    def __call__(self, changed: Mapping[str, Array]) -> Sample:
        """The function where some inputs are ``changed``; not a number where the primal cannot be evaluated."""
        try:
            outputs = self._evaluated(changed)
        except TargetError:
            return Sample(math.nan, 0.0)
        value, square = 0.0, 0.0
        with np.errstate(all="ignore"):
            for name, ct in self._cotangents.items():
                if outputs[name].shape != ct.shape:
                    return Sample(math.nan, 0.0)
                steady = _steady(outputs[name], self._base[name])
                value += float(np.sum((ct * (outputs[name] - self._base[name]))[~steady]))
                square += float(np.sum(((ct * outputs[name]) ** 2)[~steady]))
        return Sample(value, math.sqrt(square))

    def _evaluated(self, changed: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._evaluator.run({**self._feeds, **changed})
        return {name: np.asarray(outputs[name], np.float64) for name in self._cotangents}


def _steady(value: Array, base: Array) -> Array:
    """Where an output is not finite and does not move: a score that is masked with -inf has no part in a derivative."""
    return ~np.isfinite(value) & ((value == base) | (np.isnan(value) & np.isnan(base)))


@dataclasses.dataclass(frozen=True)
class Checker:
    """Compares gradients with differences in random directions and, where there are few elements, in each.

    Attributes:
        evaluator: Of the primal.
        cotangents: Of the differentiated outputs.
        extent: How much to check.
        rng: Of the directions.
    """

    evaluator: Evaluator
    cotangents: Mapping[str, Array]
    extent: Extent
    rng: np.random.Generator

    def row(self, name: str, feed: str, gradient: Array, point: Point) -> Row:
        """The row of one gradient.

        Args:
            name: The wrt name.
            feed: The input of the primal that holds it.
            gradient: Its gradient.
            point: Where.

        Cost: 2 evaluations for each direction and element that holds.
        """
        x = np.asarray(point.feeds[feed])
        by_type = max(relative_tolerance(gradient, self.evaluator), self.extent.at_least)
        rtol = self.extent.rtol if self.extent.rtol is not None else by_type
        if gradient.shape != x.shape or gradient.dtype != x.dtype:
            found, expected = (describe(a.dtype.name, a.shape) for a in (gradient, x))
            return row_of(name, gradient, f"type {found}, not {expected}", [("type and shape", _mismatch(rtol))], point)
        if x.size == 0:
            return row_of(name, gradient, "empty", [], point)
        function = PrimalScalar(self.evaluator, self.cotangents, point.feeds)
        few = x.size <= self.extent.every_element_up_to
        one_by_one = few and 2 * x.size * function.seconds <= _SECONDS_FOR_ELEMENTS
        dtype = gradient.dtype.name
        underflow = smallest_normal(dtype) * x.size
        accuracy = Accuracy(self.evaluator.epsilon, rtol, underflow, EPSILON.get(dtype, 0.0))
        varied = _Varied(function, feed, x, gradient, accuracy)
        comparisons: list[tuple[str, Comparison]] = []
        for place, direction in _directions(x.shape, self.extent.directions, one_by_one, self.rng):
            comparisons.append((place, varied.compared(direction)))
            if sum(comparison.outcome is Outcome.WRONG for _, comparison in comparisons) >= _ENOUGH_WRONG:
                break
        elements = len(comparisons) - self.extent.directions
        method = f"{self.extent.directions} directions" + (f", {elements} elements" if elements > 0 else "")
        return row_of(name, gradient, method, comparisons, point)


def primal_row(name: str, found: Any, expected: Any) -> PrimalRow:
    """Compares an output of the gradient model with that of the original model."""
    pairs = list(zip(found, expected, strict=False)) if isinstance(expected, list) else [(found, expected)]
    arrays = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    same_length = not isinstance(expected, list) or len(found) == len(expected)
    identical = same_length and all(_same_bits(a, b) for a, b in arrays)
    if identical:
        return PrimalRow(name, identical=True, error=0.0, holds=True)
    error = max((_relative(a, b) for a, b in arrays), default=math.inf) if same_length else math.inf
    allowed = min((_ROUNDING.get(b.dtype.name, 0.0) for _, b in arrays), default=0.0)
    return PrimalRow(name, identical=False, error=error, holds=error <= allowed)


def unchecked_row(name: str, gradient: Any) -> Row:
    """The row of a gradient that nothing can be compared with."""
    array = np.asarray(gradient)
    unknown = Comparison(math.nan, math.nan, 0.0, 0.0, Outcome.UNCHECKED)
    return row_of(name, array, "nothing", [("nowhere", unknown)], Point({}, {}, moved=False))


def relative_tolerance(gradient: Array, evaluator: Evaluator) -> float:
    """The relative error that holds for a derivative, by its element type and what differences are taken with."""
    own = GRADIENT_RTOL.get(gradient.dtype.name, GRADIENT_RTOL["float32"])
    return max(own, _DIFFERENCES_RTOL.get(evaluator.epsilon, 3e-1), _GROWTH * evaluator.deviation)


def _directions(
    shape: tuple[int, ...], count: int, one_by_one: bool, rng: np.random.Generator
) -> Iterator[tuple[str, Array]]:
    """Directions with a name each; the length of a random one is about the root of the number of elements."""
    for index in range(count):
        yield f"direction {index + 1}", np.asarray(rng.standard_normal(shape))
    for place in np.ndindex(shape) if one_by_one else ():
        direction = np.zeros(shape)
        direction[place] = 1.0
        yield f"element {list(place)}", direction


@dataclasses.dataclass(frozen=True)
class _Varied:
    """One input of the primal, the gradient by it, and how exactly they are compared."""

    function: PrimalScalar
    feed: str
    x: Array
    gradient: Array
    accuracy: Accuracy

    def compared(self, direction: Array) -> Comparison:
        """The comparison in one direction; an element of a gradient has the size of their root mean square."""
        wide, slope = self.x.astype(np.float64), self.gradient.astype(np.float64)
        root = math.sqrt(self.x.size)
        finite = np.isfinite(wide)  # an infinite number, such as a masked score, cannot be moved
        direction = np.where(finite, direction, 0.0)
        moving = direction != 0
        if self.function.blind or not moving.any():
            return Comparison(math.nan, math.nan, 0.0, self.accuracy.rtol, Outcome.UNCHECKED)
        with np.errstate(all="ignore"):
            claimed = float(np.sum(slope[moving] * direction[moving]))
            place, size = _norm(wide[finite]) / root, _norm(slope[moving | np.isfinite(slope)])
            if np.count_nonzero(direction) == 1:
                place, size = max(place, float(np.max(np.abs(wide[moving])))), max(size / root, abs(claimed))
        if not (math.isfinite(claimed) or self.function.defined):
            return Comparison(math.nan, claimed, 0.0, self.accuracy.rtol, Outcome.KINK)
        memory: dict[float, Sample] = {}

        def line(t: float) -> Sample:
            if t not in memory:
                memory[t] = self.function({self.feed: wide + t * direction})
            return memory[t]

        return compare(line, claimed, size, place if 0 < place < math.inf else 1.0, self.accuracy)


def _norm(array: Array) -> float:
    return float(np.sqrt(np.sum(array * array)))


def _mismatch(rtol: float) -> Comparison:
    return Comparison(math.nan, math.nan, 0.0, rtol, Outcome.WRONG)


def row_of(name: str, gradient: Array, method: str, found: list[tuple[str, Comparison]], point: Point) -> Row:
    """The row of the comparison that decides: the worst wrong one, else the worst that holds, else the first."""
    verdict = next(
        (o for o in (Outcome.WRONG, Outcome.HOLDS) if any(c.outcome is o for _, c in found)),
        found[0][1].outcome if found else Outcome.HOLDS,
    )
    deciding = [(place, c) for place, c in found if c.outcome is verdict]
    place, worst = max(
        deciding,
        key=lambda entry: entry[1].error if math.isfinite(entry[1].error) else math.inf,
        default=("empty", Comparison(0.0, 0.0, 0.0, 0.0, verdict)),
    )
    unresolved = sum(c.outcome not in (Outcome.HOLDS, Outcome.WRONG) for _, c in found)
    if point.moved:
        method += " at another point"
    return Row(
        name, gradient.dtype.name, gradient.shape, method, place,
        worst.numeric, worst.claimed, worst.error, worst.tolerance, worst.scale, verdict, unresolved,
    )  # fmt: skip


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object:
        return bool(np.all(a == b))
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _relative(a: Array, b: Array) -> float:
    """The largest difference relative to the largest finite element; infinite where types or shapes differ."""
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind in "OSU":
        return math.inf
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(wide_a), np.isfinite(wide_b)):
        return math.inf
    finite = np.isfinite(wide_b)
    scale = float(np.max(np.abs(wide_b[finite]), initial=0.0))
    worst = float(np.max(np.abs(wide_a - wide_b)[finite], initial=0.0))
    return worst / scale if scale > 0 else worst
