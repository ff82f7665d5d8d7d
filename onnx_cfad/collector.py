"""Python's cycle collector rests while a model is transformed.

Nodes and values refer to each other, and nearly all of them are in use until the result is there: looking for garbage
among them takes a third of the time and finds little. What is left over is collected when the collector runs again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def resting_collector() -> Generator[None]:
    """Stops the cycle collector, and starts it again in the end where it ran; for ``with``, or over a function."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
