"""Inputs made up from what a model declares, until it runs on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.ports import Port

Array = np.ndarray[Any, Any]

_ASK = "Give real ones: --inputs X.npz, or feeds={...} in Python."


@dataclasses.dataclass(frozen=True)
class _Manner:
    """How inputs are made up.

    Attributes:
        sizes: The sizes of symbolic dimensions, one symbol after the other, repeated.
        scalar: Every integer that stands alone: likely a trip count or a length.
        limit: Integers in tensors are below this; likely indices.
        positive: Floating-point numbers are between 0.2 and 0.8 instead of normally distributed.
    """

    sizes: tuple[int, ...]
    scalar: int
    limit: int
    positive: bool = False


_MANNERS = (
    _Manner((2, 3, 4, 5), 3, 3),
    _Manner((3,), 3, 2),
    _Manner((2,), 2, 2),
    _Manner((2, 3, 4, 5), 3, 3, positive=True),
    _Manner((2,), 1, 1, positive=True),
    _Manner((1,), 1, 1),
    _Manner((1,), 0, 1, positive=True),
    _Manner((2, 512), 3, 3),  # a signal of some length
)

_MOST_ELEMENTS = 2**28
"""Elements of one input: 2 GiB while they are drawn."""

_MOVE = 0.05
"""The size of a move relative to that of the input."""


def make_up_feeds(
    inputs: Sequence[Port], run: Callable[[Mapping[str, Any]], Mapping[str, Any]], seed: int
) -> dict[str, Array]:
    """Inputs that the model runs on, preferably with finite results.

    Args:
        inputs: The inputs of the model; those with a default are left out.
        run: Runs the model.
        seed: Of the random numbers.

    Raises:
        ModelError: The model does not run on anything that was tried; the message asks for inputs.
    """
    wanted = [port for port in inputs if port.required]
    for port in wanted:
        if not port.tensor or port.dims is None or port.type == "str":
            raise ModelError(f"input '{port.name}'", f"no value can be made up for {port}", _ASK)
    usable: dict[str, Array] | None = None
    reason = ""
    for manner in _MANNERS:
        feeds = _feeds(wanted, manner, np.random.default_rng(seed))
        try:
            results = run(feeds)
        except TargetError as error:
            reason = reason or error.what
            continue
        if all(_is_finite(value) for value in results.values()):
            return feeds
        usable = usable or feeds
    if usable is None:
        raise ModelError("inputs", f"the model does not run on made-up inputs ({reason})", _ASK)
    return usable


def _feeds(inputs: Sequence[Port], manner: _Manner, rng: np.random.Generator) -> dict[str, Array]:
    symbols: dict[str, int] = {}
    feeds: dict[str, Array] = {}
    for port in inputs:
        shape: list[int] = []
        for dim in port.dims or ():
            if isinstance(dim, str) and dim not in symbols:
                symbols[dim] = manner.sizes[len(symbols) % len(manner.sizes)]
            shape.append(dim if isinstance(dim, int) else symbols[dim] if dim is not None else manner.sizes[0])
        if math.prod(shape) > _MOST_ELEMENTS:
            raise ModelError(f"input '{port.name}'", f"no value is made up for one as large as {port}", _ASK)
        feeds[port.name] = _array(port.type, tuple(shape), manner, rng)
    return feeds


def _array(type_: str, shape: tuple[int, ...], manner: _Manner, rng: np.random.Generator) -> Array:
    if type_ == "bool":
        return np.asarray(rng.random(shape) < 0.5) if shape else np.asarray(True)
    if type_.startswith(("int", "uint")):
        alone = shape in ((), (1,))
        return np.asarray(np.full(shape, manner.scalar) if alone else rng.integers(0, manner.limit, shape)).astype(
            type_
        )
    values = rng.uniform(0.2, 0.8, shape) if manner.positive else rng.standard_normal(shape)
    return np.asarray(values).astype(_dtype(type_))


def make_up_array(type_: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normally distributed numbers of an element type, by its NumPy name."""
    return np.asarray(rng.standard_normal(shape)).astype(_dtype(type_))


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: PLC0415 - onnx_ir needs it too

    return np.dtype(getattr(ml_dtypes, name, name))


def _is_finite(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(np.all(np.isfinite(part)) for part in map(np.asarray, parts) if part.dtype.kind == "f")


def moved(value: Any, rng: np.random.Generator) -> Any:
    """``value`` with its finite elements moved at random by a twentieth of their size; what is no float stays."""
    array = np.asarray(value)
    if isinstance(value, list) or array.dtype.kind != "f" or array.size == 0:
        return value
    finite = np.isfinite(array)  # an infinite number cannot be moved
    size = float(np.sqrt(np.mean(np.square(array, dtype=np.float64), where=finite))) if finite.any() else 0.0
    moves = _MOVE * (size or 1.0) * rng.standard_normal(array.shape)
    return np.asarray(array + np.where(finite, moves, 0.0)).astype(array.dtype)
