"""A directional derivative by central differences, compared with a claimed one.

At a step h the derivative of ``f`` is taken from f(h) - f(-h). Where it does not match the claim, h/2 and f(0) tell
why: smooth functions give the same at both steps, and what f(h) - 2 f(0) + f(-h) leaves falls with the square of h. A
kink, a jump (another branch, another trip count) or rounding does not behave so, and then other steps are tried.

References:
    Higham, Accuracy and Stability of Numerical Algorithms, section 1.14 (the balance of truncation and rounding).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable


class Outcome(enum.Enum):
    """What a comparison showed."""

    HOLDS = "ok"
    WRONG = "wrong"
    KINK = "not smooth here"
    NOISE = "below rounding"
    UNCHECKED = "not checked"


@dataclasses.dataclass(frozen=True)
class Sample:
    """The function at one point of the line.

    Attributes:
        value: The function.
        size: The size of what was summed to get it, so that ``epsilon * size`` is its rounding error.
    """

    value: float
    size: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A numerical directional derivative beside a claimed one.

    Attributes:
        numeric: By differences.
        claimed: By the gradient.
        scale: What errors are relative to: the larger of the numerical derivative and the gradient's size.
        tolerance: Relative to ``scale``.
        outcome: The verdict.
    """

    numeric: float
    claimed: float
    scale: float
    tolerance: float
    outcome: Outcome

    @property
    def difference(self) -> float:
        """How far the two numbers are apart."""
        return abs(self.numeric - self.claimed)

    @property
    def error(self) -> float:
        """The difference relative to ``scale``."""
        return self.difference / self.scale if self.scale > 0 else self.difference


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How exact a comparison can be.

    Attributes:
        epsilon: The rounding error of one operation of the evaluator.
        rtol: The relative error that the gradient may have.
        underflow: What the type of the gradient cannot tell from zero.
        gradient_epsilon: The rounding error of one operation in the type of the gradient.
    """

    epsilon: float
    rtol: float
    underflow: float = 0.0
    gradient_epsilon: float = 0.0

    @property
    def step(self) -> float:
        """The first step, relative to the size of the argument: truncation and rounding weigh the same."""
        return min((3 * self.epsilon) ** (1 / 3), _LARGEST_STEP)

    def noise(self, sample: Sample, step: float) -> float:
        """The rounding error of a difference quotient."""
        return 8 * self.epsilon * sample.size / step


_FACTORS = (1.0, 0.1, 0.01, 10.0, 100.0)
_LARGEST_STEP = 0.1  # of the argument: a larger one says little about a derivative
_ROUNDING_SHARE = 0.05  # of the scale: a tolerance that rounding makes wider says nothing


def compare(
    line: Callable[[float], Sample], claimed: float, gradient_size: float, argument_size: float, accuracy: Accuracy
) -> Comparison:
    """Compares a claimed derivative of ``line`` at 0 with central differences.

    Args:
        line: The function along a direction.
        claimed: Its derivative at 0, by the gradient.
        gradient_size: The size of the gradient, which its rounding errors are relative to.
        argument_size: The size of what is varied.
        accuracy: Of evaluator and gradient.

    Cost: 2 evaluations where the claim holds at the first step, at most 21.
    """
    if not math.isfinite(claimed):
        finite = math.isfinite(_central(line, accuracy.step * argument_size))
        return Comparison(math.nan, claimed, 0.0, accuracy.rtol, Outcome.WRONG if finite else Outcome.KINK)
    first: Comparison | None = None
    for factor in _FACTORS:
        if factor > 1 and factor * accuracy.step > _LARGEST_STEP:
            break
        found = _at(line, claimed, gradient_size, factor * accuracy.step * argument_size, accuracy)
        if found.outcome is Outcome.WRONG and found.difference <= _resolution(line, argument_size, accuracy):
            found = dataclasses.replace(found, outcome=Outcome.NOISE)
        if found.outcome in (Outcome.HOLDS, Outcome.WRONG):
            return found
        first = first or found
    assert first is not None
    return first


def _resolution(line: Callable[[float], Sample], argument_size: float, accuracy: Accuracy) -> float:
    """The derivative that rounding of the outputs hides: in a saturated sigmoid, 1 - y has no digit left."""
    return 4 * accuracy.gradient_epsilon * line(0.0).size / argument_size


def _central(line: Callable[[float], Sample], step: float) -> float:
    return (line(step).value - line(-step).value) / (2 * step)


def _at(
    line: Callable[[float], Sample], claimed: float, gradient_size: float, step: float, accuracy: Accuracy
) -> Comparison:
    """The comparison at one step."""
    ahead, behind = line(step), line(-step)
    coarse = (ahead.value - behind.value) / (2 * step)
    noise = max(accuracy.noise(ahead, step), accuracy.noise(behind, step))
    first = _judged(coarse, claimed, gradient_size, noise, accuracy, doubt=math.inf)
    if first.outcome is Outcome.HOLDS or not math.isfinite(coarse):
        return first
    fine = _central(line, step / 2)
    bend = ahead.value - 2 * line(0.0).value + behind.value
    finer_bend = line(step / 2).value - 2 * line(0.0).value + line(-step / 2).value
    # Of a smooth function, both terms fall with the square of the step; at a kink they stay.
    doubt = abs(coarse - fine) + abs(bend - 4 * finer_bend) / step + 4 * noise
    return _judged((4 * fine - coarse) / 3, claimed, gradient_size, 2 * noise, accuracy, doubt=doubt)


def _judged(
    numeric: float, claimed: float, gradient_size: float, noise: float, accuracy: Accuracy, *, doubt: float
) -> Comparison:
    """The verdict on two numbers, one of which is uncertain by ``doubt``."""
    if not math.isfinite(numeric):
        return Comparison(numeric, claimed, 0.0, accuracy.rtol, Outcome.KINK)
    scale = max(abs(numeric), gradient_size)
    difference = abs(numeric - claimed)
    if difference <= (max(noise, accuracy.underflow) if gradient_size == 0 else accuracy.underflow):
        return Comparison(numeric, claimed, 0.0, accuracy.rtol, Outcome.HOLDS)
    tolerance = accuracy.rtol * scale + min(noise, _ROUNDING_SHARE * scale)
    if difference <= tolerance:
        outcome = Outcome.HOLDS
    elif difference > 4 * doubt and (doubt <= abs(numeric) / 4 or doubt <= 8 * noise):
        outcome = Outcome.WRONG  # far outside the doubt, and the doubt is small or only rounding
    else:
        outcome = Outcome.NOISE if 4 * noise > difference else Outcome.KINK
    return Comparison(numeric, claimed, scale, tolerance / scale, outcome)
