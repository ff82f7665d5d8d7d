"""What a body is compiled for: the types and shapes of its inputs, and the values of those that decide shapes inside.

Needs NumPy alone: parent and child both compute signatures, and must find the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

MOST_GUARDED = 16
"""Elements of an input whose values are part of a signature."""

Signature = tuple[tuple[str, tuple[int, ...], tuple[int, ...] | None], ...]
"""For each input its element type, its shape, and its values where they are guarded, else None."""


def signature_of(arrays: Sequence[Any], guarded: Collection[int] = ()) -> Signature:
    """The signature of given inputs, NumPy arrays.

    Args:
        arrays: The inputs of a body, in order.
        guarded: The positions of integer inputs whose values decide shapes inside the body.
    """
    return tuple(
        (array.dtype.name, array.shape, tuple(array.reshape(-1).tolist()) if position in guarded else None)
        for position, array in enumerate(arrays)
    )


def signature_from(plain: Sequence[Sequence[Any]]) -> Signature:
    """The signature that JSON has made lists of."""
    return tuple(
        (str(type_), tuple(shape), None if values is None else tuple(values)) for type_, shape, values in plain
    )


def digest(signature: Signature) -> str:
    """A short name for a signature, for files."""
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:12]
