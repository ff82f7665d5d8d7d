"""Central differences: what holds, what is wrong, and what cannot be told."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from onnx_cfad.numeric.differences import Accuracy, Comparison, Outcome, Sample, compare

FLOAT64 = Accuracy(epsilon=2.0**-53, rtol=1e-6)
FLOAT32 = Accuracy(epsilon=2.0**-24, rtol=2e-2)


def compared(
    f: Callable[[float], float],
    claimed: float,
    *,
    at: float = 0.0,
    accuracy: Accuracy = FLOAT64,
    size: float | None = None,
) -> Comparison:
    base = f(at)

    def line(t: float) -> Sample:
        return Sample(f(at + t) - base, abs(f(at + t)))

    return compare(line, claimed, abs(claimed) if size is None else size, abs(at) or 1.0, accuracy)


@pytest.mark.parametrize("at", [0.3, 2.0, -40.0])
def test_right_derivative_of_smooth_function_holds(at: float) -> None:
    assert compared(math.sin, math.cos(at), at=at).outcome is Outcome.HOLDS


@pytest.mark.parametrize("factor", [1.0001, 0.5, -1.0, 0.0])
def test_wrong_derivative_of_smooth_function_is_wrong(factor: float) -> None:
    found = compared(math.exp, factor * math.exp(0.7), at=0.7)
    assert found.outcome is Outcome.WRONG
    assert found.numeric == pytest.approx(math.exp(0.7), rel=1e-8)


@pytest.mark.parametrize("claimed", [0.0, 0.5, 1.0, 0.25])
def test_kink_at_the_point_is_never_wrong(claimed: float) -> None:
    assert compared(lambda t: max(t, 0.0), claimed, size=1.0).outcome is not Outcome.WRONG


def test_kink_at_the_point_is_told_from_a_match() -> None:
    assert compared(lambda t: max(t, 0.0), 0.0, size=1.0).outcome is Outcome.KINK


def test_kink_beside_the_point_is_avoided_by_a_smaller_step() -> None:
    distance = FLOAT64.step / 3
    assert compared(abs, 1.0, at=distance).outcome is Outcome.HOLDS
    wide = Accuracy(FLOAT64.epsilon, FLOAT64.rtol)
    line = compare(lambda t: Sample(abs(t + distance) - distance, 1.0), 1.0, 1.0, 1.0, wide)
    assert line.outcome is Outcome.HOLDS


@pytest.mark.parametrize("claimed", [0.0, 1.0])
def test_jump_is_not_smooth(claimed: float) -> None:
    assert compared(lambda t: t + (t > 0), claimed, size=1.0).outcome is Outcome.KINK


def test_jump_elsewhere_does_not_matter() -> None:
    assert compared(lambda t: t + (t > 0.5), 1.0).outcome is Outcome.HOLDS


def test_rounding_larger_than_the_derivative_is_said_so() -> None:
    rng = np.random.default_rng(0)
    values: dict[float, float] = {}

    def noisy(t: float) -> float:
        return values.setdefault(t, 1e6 + 1e-6 * t + 1e-10 * 1e6 * float(rng.standard_normal()))

    accuracy = Accuracy(epsilon=1e-10, rtol=1e-6)
    assert compared(noisy, 1e-6, accuracy=accuracy).outcome is Outcome.NOISE


def test_zero_gradient_of_a_constant_holds() -> None:
    found = compared(lambda _: 3.0, 0.0)
    assert (found.outcome, found.scale) == (Outcome.HOLDS, 0.0)


def test_zero_gradient_of_a_function_that_varies_is_wrong() -> None:
    assert compared(math.sin, 0.0, at=0.5).outcome is Outcome.WRONG


def test_gradient_that_underflows_in_its_type_holds() -> None:
    tiny = Accuracy(FLOAT64.epsilon, FLOAT64.rtol, underflow=2.0**-14)
    assert compared(lambda t: 1e-6 * t, 0.0, accuracy=tiny).outcome is Outcome.HOLDS
    assert compared(lambda t: 1e-3 * t, 0.0, accuracy=tiny).outcome is Outcome.WRONG


def test_gradient_that_is_not_a_number_is_wrong_where_the_function_is_smooth() -> None:
    assert compared(math.sin, math.nan, size=0.0).outcome is Outcome.WRONG
    assert compared(lambda _: math.nan, math.nan, size=0.0).outcome is Outcome.KINK


def test_derivative_that_rounding_of_the_outputs_hides_is_not_wrong() -> None:
    single = Accuracy(FLOAT64.epsilon, 1e-3, gradient_epsilon=2.0**-24)
    saturated = math.exp(-16.0)
    assert compared(lambda t: 1 - saturated * math.exp(-t), 0.0, accuracy=single).outcome is Outcome.NOISE
    assert compared(lambda t: 1 - 1e-3 * math.exp(-t), 0.0, accuracy=single).outcome is Outcome.WRONG


def test_large_curvature_does_not_look_wrong() -> None:
    assert compared(lambda t: math.sin(3000 * t), 3000 * math.cos(3000 * 0.4), at=0.4).outcome is Outcome.HOLDS


def test_flat_ends_do_not_make_a_right_derivative_wrong() -> None:
    steep = 300.0
    found = compared(lambda t: math.tanh(steep * t), steep, at=0.0, accuracy=FLOAT32)
    assert found.outcome is not Outcome.WRONG


def test_single_precision_finds_a_derivative_to_its_tolerance() -> None:
    def f(t: float) -> float:
        return float(np.sin(np.float32(t)))

    assert compared(f, math.cos(0.6), at=0.6, accuracy=FLOAT32).outcome is Outcome.HOLDS
    assert compared(f, 1.1 * math.cos(0.6), at=0.6, accuracy=FLOAT32).outcome is Outcome.WRONG


def test_a_right_claim_costs_two_evaluations() -> None:
    calls: list[float] = []

    def line(t: float) -> Sample:
        calls.append(t)
        return Sample(2 * t, 1.0)

    assert compare(line, 2.0, 2.0, 1.0, FLOAT64).outcome is Outcome.HOLDS
    assert len(calls) == 2
