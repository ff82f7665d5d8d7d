"""Results beside those of ONNX Runtime: errors are relative to the largest element; NaN and infinity are equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onnx_cfad.targets.comparison import errors_of, first_difference


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        (f32(1, 2), f32(1, 2), 0.0),
        (f32(1, 2.5), f32(1, 2), 0.25),
        (f32(0.5, 100), f32(0, 100), 0.005),
        (f32(math.nan, 1), f32(math.nan, 1), 0.0),
        (f32(math.inf, 1), f32(math.inf, 1), 0.0),
        (f32(-math.inf, 1), f32(math.inf, 1), math.inf),
        (f32(math.nan, 1), f32(0, 1), math.inf),
        (f32(0, 1), f32(math.nan, 1), math.inf),
        (f32(1), f32(1, 1), math.inf),
        (f32(1), np.asarray([1.0]), math.inf),
        (np.asarray([1, 2]), np.asarray([1, 2]), 0.0),
        (np.asarray([1, 2]), np.asarray([1, 3]), math.inf),
        (np.asarray([True]), np.asarray([False]), math.inf),
        (f32(), f32(), 0.0),
        ([f32(1), f32(2)], [f32(1), f32(1)], 1.0),
        ([f32(1)], [f32(1), f32(1)], math.inf),
        ([], [], 0.0),
    ],
)
def test_error(result: Any, expected: Any, error: float) -> None:
    assert errors_of({"y": result}, {"y": expected})["y"] == pytest.approx(error)
    difference = first_difference({"y": result}, {"y": expected})
    assert (difference is None) is (error == 0)


def test_tolerance_is_that_of_the_type_unless_given() -> None:
    near = {"y": f32(1, 1 + 9e-6)}, {"y": f32(1, 1)}
    far = {"y": f32(1, 1 + 2e-5)}, {"y": f32(1, 1)}
    assert first_difference(*near) is None
    difference = first_difference(*far)
    assert difference is not None
    assert difference.output == "y"
    assert difference.what.startswith("relative error 2.0e-05, tolerance 1e-05")
    assert first_difference(*far, rtol=1e-4) is None


def test_first_output_that_differs_is_named_with_both_types() -> None:
    difference = first_difference(
        {"a": f32(1), "b": np.asarray([1]), "c": f32(2)}, {"a": f32(1), "b": f32(1), "c": f32(1)}
    )
    assert difference is not None
    assert (difference.output, difference.what) == ("b", "found int64[1], expected float32[1]")


def test_stack_of_no_rows_may_have_any_length_of_row() -> None:
    """ONNX Runtime gives rows of symbolic length none; a compiled model knows their length."""
    assert first_difference({"y": np.zeros((0, 3))}, {"y": np.zeros((0, 0))}) is None
    assert first_difference({"y": np.zeros((0, 3))}, {"y": np.zeros(0)}) is not None
    assert first_difference({"y": np.zeros((1, 3))}, {"y": np.zeros((0, 3))}) is not None
