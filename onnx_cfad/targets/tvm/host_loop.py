"""The iterations of a loop of a host program: carried values, slices, and rows stacked into one array.

Like ``hostprog``, this file needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_cfad.targets.tvm import host_values

if TYPE_CHECKING:
    from onnx_cfad.targets.tvm.hostprog import Repeat, StackStep

Action = Callable[[list[Any]], None]
"""What a step does with the registers."""

_UNLIMITED = 2**62
_FIRST_ROWS = 16
"""Rows that a stack begins with where the trip count is not known; it doubles."""


class Loop:
    """Runs the iterations of a ``Repeat``.

    Args:
        step: The loop.
        slot: Gives the register of a name.
        xp: The module of the arrays that rows are stacked in.

    Attributes:
        actions: What an iteration does, in order.
    """

    def __init__(self, step: Repeat, slot: Callable[[str], int], xp: Any) -> None:
        self.site, self.xp = step.site, xp
        self.actions: list[Action] = []
        self.limit, self.start, self.index, self.predicate, self.proceed = (
            slot(name) if name else None for name in (step.limit, step.start, step.index, step.predicate, step.proceed)
        )
        self.initial = [slot(c.initial) for c in step.carries]
        self.entries = [slot(c.entry) for c in step.carries]
        self.exits = [slot(c.exit) for c in step.carries]
        self.finals = [slot(c.final) for c in step.carries]
        self.slices = [(slot(s.source), slot(s.entry), s.axis, s.reverse) for s in step.slices]
        self.stacks = [(slot(s.element), slot(s.stacked), s) for s in step.stacks]

    def run(self, registers: list[Any]) -> None:
        """Runs all iterations, and leaves the last carries and the stacks in their registers."""
        rows = [(entry, self.rows(registers[source], axis, back)) for source, entry, axis, back in self.slices]
        limit = self.trips(registers, [len(view) for _, view in rows])
        going = self.start is None or bool(host_values.scalar(registers[self.start]))
        exact = limit if self.proceed is None and limit < _UNLIMITED else None
        stacks = [(element, Stack(step, limit, exact, self.xp)) for element, _, step in self.stacks]
        carried = [registers[k] for k in self.initial]
        actions, entries, exits, index, proceed = self.actions, self.entries, self.exits, self.index, self.proceed
        if self.predicate is not None:
            registers[self.predicate] = np.asarray(True)
        trip = 0
        while going and trip < limit:
            for k, value in zip(entries, carried):  # noqa: B905 - both have one entry a carry
                registers[k] = value
            if index is not None:
                registers[index] = np.array(trip)
            for k, view in rows:
                registers[k] = view[trip, ...]
            for action in actions:
                action(registers)
            carried = [registers[k] for k in exits]
            for k, stack in stacks:
                stack.push(trip, registers[k])
            if proceed is not None:
                going = bool(host_values.scalar(registers[proceed]))
            trip += 1
        for k, value in zip(self.finals, carried, strict=True):
            registers[k] = value
        for (_, stacked, _), (_, stack) in zip(self.stacks, stacks, strict=True):
            registers[stacked] = stack.whole(trip)

    def rows(self, source: Any, axis: int, reverse: bool) -> Any:
        """A view of ``source`` whose first axis is the iteration."""
        view = self.xp.moveaxis(host_values.as_array(source, self.xp), axis, 0)
        return view[::-1] if reverse else view

    def trips(self, registers: list[Any], lengths: list[int]) -> int:
        """The largest number of iterations."""
        if len(set(lengths)) > 1:
            raise host_values.HostProgramError(f"{self.site}: its scan inputs have different lengths: {lengths}")
        if lengths:
            return lengths[0]
        return _UNLIMITED if self.limit is None else min(int(host_values.scalar(registers[self.limit])), _UNLIMITED)


class Stack:
    """A stacked output in the making: one array, of as many rows as the loop will have, as far as that is known."""

    def __init__(self, step: StackStep, limit: int, exact: int | None, xp: Any) -> None:
        self.step, self.limit, self.exact, self.xp = step, limit, exact, xp
        self.array: Any = None
        self.rows: Any = None
        self.capacity = 0

    def push(self, trip: int, element: Any) -> None:
        """Takes the row of iteration ``trip``."""
        element = host_values.as_array(element, self.xp)
        if trip >= self.capacity:
            self.grow(element)
        elif element.shape != self.rows.shape[1:]:
            raise host_values.HostProgramError(
                f"stacked output '{self.step.stacked}': iteration {trip} gives a row of shape {list(element.shape)}, "
                f"those before it have {list(self.rows.shape[1:])}"
            )
        self.rows[self.capacity - 1 - trip if self.step.reverse else trip, ...] = element

    def grow(self, element: Any) -> None:
        """Makes room for more rows."""
        old, used = self.rows, self.capacity
        self.capacity = self.exact or min(max(2 * used, _FIRST_ROWS), self.limit)
        shape, axis = list(element.shape), self.step.axis
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, self.capacity)
        self.array = self.xp.empty(shape, dtype=element.dtype)
        self.rows = self.xp.moveaxis(self.array, axis, 0)
        if used:
            self.rows[:used] = old

    def whole(self, trips: int) -> Any:
        """The stack; a copy of it where more than half of its memory would be kept for nothing."""
        if trips == 0:
            shape = list(self.step.dims)
            shape.insert(self.step.axis if self.step.axis >= 0 else self.step.axis + len(shape) + 1, 0)
            return self.xp.empty(shape, dtype=np.dtype(self.step.dtype))
        if trips == self.capacity:
            return self.array
        return self.array[:trips].copy() if 2 * trips < self.capacity else self.array[:trips]
