"""Results of a target beside those of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RTOL = {"float16": 1e-2, "bfloat16": 1e-1, "float32": 1e-5, "float64": 1e-9}
"""The largest error of an output relative to its largest element, by element type; other types have to be equal."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """An output that is not what it should be: its name, and in which way."""

    output: str
    what: str


def errors_of(results: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """The largest error of each output, relative to the largest finite element of the reference.

    It is infinite where shapes or types differ, or what is not finite is not the same.
    """
    return {name: _error(results[name], expected) for name, expected in reference.items()}


def first_difference(
    results: Mapping[str, Any], reference: Mapping[str, Any], rtol: float | None = None
) -> Difference | None:
    """The first output whose error is over the tolerance, None where there is none.

    Args:
        results: The outputs by name.
        reference: What they should be.
        rtol: The tolerance of floating-point outputs; default: by element type.
    """
    for name, error in differing(results, reference, rtol).items():
        return Difference(name, _what(results[name], reference[name], error, _tolerance(reference[name], rtol)))
    return None


def differing(results: Mapping[str, Any], reference: Mapping[str, Any], rtol: float | None = None) -> dict[str, float]:
    """The outputs whose error is over the tolerance, with the error; see ``first_difference``."""
    errors = errors_of(results, reference)
    return {name: error for name, error in errors.items() if error > _tolerance(reference[name], rtol)}


def _tolerance(expected: Any, rtol: float | None) -> float:
    parts = expected if isinstance(expected, list) else [expected]
    type_ = np.asarray(parts[0]).dtype.name if parts else "float32"
    return (RTOL.get(type_, 0.0) if rtol is None else rtol) if type_ in RTOL else 0.0


def _what(result: Any, expected: Any, error: float, tolerance: float) -> str:
    if isinstance(expected, list) or isinstance(result, list):
        return f"relative error {error:.1e}, tolerance {tolerance:.0e}"
    result, expected = np.asarray(result), np.asarray(expected)
    if result.dtype != expected.dtype or result.shape != expected.shape:
        found = f"{result.dtype.name}{list(result.shape)}"
        return f"found {found}, expected {expected.dtype.name}{list(expected.shape)}"
    return f"relative error {error:.1e}, tolerance {tolerance:.0e}"


def _error(result: Any, expected: Any) -> float:
    if isinstance(expected, list):
        if not isinstance(result, list) or len(result) != len(expected):
            return float("inf")
        return max((_error(*pair) for pair in zip(result, expected, strict=True)), default=0.0)
    result, expected = np.asarray(result), np.asarray(expected)
    if result.dtype != expected.dtype or result.ndim != expected.ndim:
        return float("inf")
    if not result.size and not expected.size:  # ONNX Runtime stacks no rows of symbolic length to [0, 0]
        return 0.0
    if result.shape != expected.shape:
        return float("inf")
    if not (np.issubdtype(expected.dtype, np.floating) or expected.dtype.name in RTOL):
        return 0.0 if np.array_equal(result, expected) else float("inf")
    found, wanted = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(found[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    difference = float(np.abs(found[finite] - wanted[finite]).max())
    return difference / max(float(np.abs(wanted[finite]).max()), np.finfo(np.float32).tiny) if difference else 0.0
