"""Python's cycle collector rests while a model is transformed.

Nodes and values refer to each other, and nearly all of them are in use until the result is there: looking for garbage
among them takes a third of the time and finds little. Behind a stage that made many they count as old, so that the
collector does not look through all of them as soon as it runs again: between loading, differentiating and writing that
took up to a quarter of the time. When enough have become old like that, or hold enough bytes, all garbage is collected
before the next model is loaded: by then what earlier stages made may be garbage, and behind them it is still in use.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

_MANY = 5_000
"""Objects of one stage that are worth it. Fewer are looked through quickly; their garbage may hold large weights."""

_ENOUGH = 500_000
"""Objects until all garbage is collected before a model is loaded: two gradients of 10,000 nodes, some 40 MiB."""

_FAR_TOO_MANY = 2 * _ENOUGH
"""Objects of earlier stages until all garbage is collected behind any stage."""

_HEAVY = 2**28
"""Bytes of loaded tensors until all garbage is collected before a model is loaded."""


@contextlib.contextmanager
def resting_collector() -> Generator[None]:
    """Stops the cycle collector, and starts it again in the end where it ran; for ``with``, or over a function."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            _aged.age(gc.get_count()[0])
            gc.enable()


def collect_before_loading() -> None:
    """Collects all garbage where there may be much of it, unless the collector is off."""
    if gc.isenabled():
        _aged.make_room()


def loaded(size: int) -> None:
    """Says that a model with ``size`` bytes of tensors has been loaded, which it holds when it is garbage."""
    _aged.size += size


class _Aged:
    """What has become old, or was loaded, without the collector having looked at it.

    Attributes:
        count: Objects.
        size: Bytes of loaded tensors.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0

    def make_room(self) -> None:
        """Collects all garbage where there may be much of it."""
        if self.count > _ENOUGH or self.size > _HEAVY:
            self._collect()

    def age(self, made: int) -> None:
        """Moves every object to the oldest generation; the last stage ``made`` some, which are in use."""
        if made < _MANY or gc.get_freeze_count():  # what somebody keeps out of the collector's sight would come back
            return
        if self.count > _FAR_TOO_MANY:
            self._collect()
        else:
            gc.freeze()
            gc.unfreeze()
        self.count += made

    def _collect(self) -> None:
        self.count = self.size = 0
        gc.collect()


_aged = _Aged()
