"""What operators make of constants, computed while the graph is written: the run has nothing to do there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

_LIMIT = 256  # elements of a constant that is computed ahead

Arrays = Sequence[np.ndarray]


def folded(op_type: str, inputs: Arrays, attributes: Mapping[str, Any]) -> np.ndarray | None:
    """The result of ``op_type`` on constants; None where it is not computed ahead."""
    fold = _FOLDS.get(op_type)
    if fold is None or any(array.size > _LIMIT for array in inputs):
        return None
    if op_type in _ALIKE and len({array.dtype for array in inputs}) > 1:
        return None
    with np.errstate(all="ignore"):
        result = fold(inputs, attributes)
    return None if result is None or result.size > _LIMIT else result


def _range(xs: Arrays, _: Mapping[str, Any]) -> np.ndarray | None:
    start, limit, step = (array.item() for array in xs)
    if xs[0].dtype.kind != "i" or step == 0 or (limit - start) / step > _LIMIT:
        return None
    return np.arange(start, limit, step, dtype=xs[0].dtype)


def _squeeze(xs: Arrays, _: Mapping[str, Any]) -> np.ndarray | None:
    return np.squeeze(xs[0], tuple(xs[1].tolist())) if len(xs) == 2 else None


def _unsqueeze(xs: Arrays, _: Mapping[str, Any]) -> np.ndarray:
    return np.expand_dims(xs[0], tuple(xs[1].tolist()))


def _gather(xs: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    return np.take(xs[0], xs[1], axis=attributes.get("axis", 0))


def _divide(xs: Arrays, _: Mapping[str, Any]) -> np.ndarray | None:
    return np.asarray(xs[0] / xs[1]) if xs[0].dtype.kind in "fV" else None


def _cast(xs: Arrays, attributes: Mapping[str, Any]) -> np.ndarray | None:
    """A number of elements as a floating-point number; nothing that a conversion might change otherwise."""
    kind = {int(ir.DataType.FLOAT): np.float32, int(ir.DataType.DOUBLE): np.float64}.get(attributes["to"])
    exact = kind is not None and xs[0].dtype == np.int64 and bool((np.abs(xs[0]) < 1 << 24).all())
    return xs[0].astype(kind) if exact else None


_FOLDS: dict[str, Callable[[Arrays, Mapping[str, Any]], np.ndarray | None]] = {
    "Cast": _cast,
    "Add": lambda xs, _: np.asarray(xs[0] + xs[1]),
    "Sub": lambda xs, _: np.asarray(xs[0] - xs[1]),
    "Mul": lambda xs, _: np.asarray(xs[0] * xs[1]),
    "Div": _divide,
    "Neg": lambda xs, _: np.asarray(-xs[0]),
    "Concat": lambda xs, attributes: np.concatenate(xs, axis=attributes["axis"]),
    "Gather": _gather,
    "Range": _range,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
_ALIKE = frozenset(("Add", "Sub", "Mul", "Div", "Concat", "Range"))
