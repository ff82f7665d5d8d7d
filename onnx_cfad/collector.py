"""Python's cycle collector rests while a model is transformed.

Nodes and values refer to each other, and nearly all of them are in use until the result is there: looking for garbage
among them takes a third of the time and finds little. Behind a stage that made many they count as old, so that the
collector does not look through all of them as soon as it runs again: between loading, differentiating and writing that
took up to a quarter of the time. When enough have become old like that, all garbage is collected.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

_MANY = 5_000
"""Objects of one stage that are worth it. Fewer are looked through quickly; their garbage may hold large weights."""

_ENOUGH = 100_000
"""Objects until all garbage is collected, as many as Python itself would leave in a process of half a million."""


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


class _Aged:
    """How many objects have become old without the collector having looked at them."""

    def __init__(self) -> None:
        self.count = 0

    def age(self, made: int) -> None:
        """Moves every object to the oldest generation, or collects all garbage where there may be much of it."""
        if made < _MANY or gc.get_freeze_count():  # what somebody keeps out of the collector's sight would come back
            return
        self.count += made
        if self.count > _ENOUGH:
            self.count = 0
            gc.collect()
        else:
            gc.freeze()
            gc.unfreeze()


_aged = _Aged()
