"""Every check of a gradient against differences is a check of tangents too: the mode is a parameter of such tests.

A test that calls ``assert_vjp``, directly or through one of the functions below, runs in reverse and in forward mode;
``assert_vjp`` looks here for which it is. A test of second derivatives has reverse over reverse, forward over reverse
and reverse over forward.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator
from typing import Any

MODES = ("reverse", "forward")
SECOND_ORDER_MODES = (*MODES, "reverse-over-forward")
_FIRST = frozenset(("check", "assert_vjp", "assert_matches_differences"))
_SECOND = frozenset(("assert_second_order", "check_second", "first_order"))

MODE = contextvars.ContextVar("MODE", default=MODES[0])


def checks_of(test: Callable[..., Any]) -> tuple[str, ...]:
    """The modes that a test is run in, by what it calls; none where it checks no derivative."""
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    names = {*inner.__code__.co_names}
    return SECOND_ORDER_MODES if names & _SECOND else MODES if names & _FIRST else ()


@contextlib.contextmanager
def in_mode(mode: str) -> Generator[None]:
    """Lets ``assert_vjp`` check derivatives in ``mode``."""
    token = MODE.set(mode)
    try:
        yield
    finally:
        MODE.reset(token)
