"""What a host program does with values by itself: scalars read, arrays recognised, sequences and optionals.

A sequence is a list of arrays, an optional is its content or None. Like ``hostprog``, this file needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Attributes = Mapping[str, int]
Inputs = Sequence[Any]


class HostProgramError(Exception):
    """A host program cannot go on; the text says at which site and why."""


def as_array(value: Any, xp: Any) -> Any:
    """``value`` as an array of the module ``xp``; one of a runner's own kind is asked for its ``numpy()``."""
    if isinstance(value, xp.ndarray):
        return value
    return xp.asarray(value.numpy() if hasattr(value, "numpy") else value)


def scalar(value: Any) -> Any:
    """The Python number that an array of one element holds."""
    return value.item() if hasattr(value, "item") else as_array(value, np).item()


def _position(value: Any, length: int, inclusive: bool) -> int:
    position, end = int(scalar(value)), length + inclusive
    if not -length <= position < end:
        raise IndexError(f"position {position} in a sequence of {length}")
    return position + length if position < 0 else position


def _empty(_: Any, __: Inputs, ___: Attributes) -> list[Any]:
    return []


def _at(_: Any, inputs: Inputs, __: Attributes) -> Any:
    held, where = inputs
    return held[_position(where, len(held), inclusive=False)]


def _insert(_: Any, inputs: Inputs, __: Attributes) -> list[Any]:
    held, element = inputs[:2]
    position = len(held) if len(inputs) < 3 or inputs[2] is None else _position(inputs[2], len(held), inclusive=True)
    return [*held[:position], element, *held[position:]]


def _erase(_: Any, inputs: Inputs, __: Attributes) -> list[Any]:
    held = inputs[0]
    where = -1 if len(inputs) < 2 or inputs[1] is None else inputs[1]
    position = _position(np.asarray(where), len(held), inclusive=False)
    return [*held[:position], *held[position + 1 :]]


def _concat(xp: Any, inputs: Inputs, attributes: Attributes) -> Any:
    arrays = [as_array(element, xp) for element in inputs[0]]
    return (xp.stack if attributes.get("new_axis", 0) else xp.concatenate)(arrays, axis=attributes["axis"])


def _split(xp: Any, inputs: Inputs, attributes: Attributes) -> list[Any]:
    whole, axis = as_array(inputs[0], xp), attributes.get("axis", 0)
    size = whole.shape[axis]
    if len(inputs) < 2 or inputs[1] is None:
        pieces = xp.split(whole, size, axis=axis) if size else []
        return pieces if attributes.get("keepdims", 1) else [xp.squeeze(piece, axis=axis) for piece in pieces]
    lengths = as_array(inputs[1], np)
    bounds = np.arange(int(lengths), size, int(lengths)) if lengths.ndim == 0 else np.cumsum(lengths)[:-1]
    return xp.split(whole, bounds, axis=axis)


def _has_element(_: Any, inputs: Inputs, __: Attributes) -> Any:
    return np.array(bool(inputs) and inputs[0] is not None)


def _get_element(_: Any, inputs: Inputs, __: Attributes) -> Any:
    if inputs[0] is None:
        raise ValueError("the optional is empty")
    return inputs[0]


OPERATORS: dict[str, Callable[[Any, Inputs, Attributes], Any]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": lambda _, inputs, __: list(inputs),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda _, inputs, __: np.array(len(inputs[0])),
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "Optional": lambda _, inputs, __: inputs[0] if inputs else None,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
"""The operators that a step of a host program can have: from the array module, the inputs and the attributes."""
