"""Checkpoint schedules as pure data: which iterations a segment holds, what is kept when, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

_SCAN_BOUNDARY, _LOOP_BOUNDARY = 1.0, 2.0  # copies of a boundary carry: a Scan output, a Loop output (measured)
_SEGMENT = 2.0  # states alive for each taped byte of a segment, its stacked cotangents included (measured)
_SHORTEST = 16  # iterations: below, the overhead of the outer loop shows
_TRIED = 4096  # segment lengths
_LARGE, _SHORTEST_OF_LARGE = 1 << 18, 4  # bytes of tape an iteration: its own work is far more than that overhead


@dataclasses.dataclass(frozen=True)
class Schedule:
    """``trips`` iterations in segments of ``segment``, segments of segments, ... up to ``levels``.

    Attributes:
        trips: Iterations.
        segment: Iterations in a segment of the innermost level.
        levels: 1 for a full tape, 2 for segments, ...
    """

    trips: int
    segment: int
    levels: int = 2

    def spans(self, level: int) -> Iterator[range]:
        """The spans of iterations at a level, in order: level 1 is single iterations, level 2 segments, ..."""
        size = self.segment ** (level - 1)
        for start in range(0, self.trips, size):
            yield range(start, min(start + size, self.trips))

    @property
    def replays(self) -> int:
        """How often an iteration is run again at most: once for each level above the first."""
        return self.levels - 1

    @property
    def checkpoints(self) -> int:
        """The most carries kept at one time: those of each level's open span, and the tape of the innermost."""
        kept, whole = 0, self.trips
        for level in range(self.levels, 0, -1):
            size = self.segment ** (level - 1)
            kept += math.ceil(whole / size)
            whole = min(whole, size)
        return kept

    def peak_bytes(self, carry: int, iteration: int) -> int:
        """Bytes kept at the worst moment, for ``carry`` bytes at a boundary and ``iteration`` bytes of tape."""
        innermost = self.trips if self.levels == 1 else min(self.segment, self.trips)
        return (self.checkpoints - innermost) * carry + innermost * iteration

    def order(self) -> Iterator[tuple[str, int]]:
        """The literal order of the reverse pass: ("run", i) runs iteration i again, ("sweep", i) reverses it."""
        yield from self._order(range(self.trips), self.levels)

    def _order(self, span: range, level: int) -> Iterator[tuple[str, int]]:
        if level == 1:
            yield from (("sweep", i) for i in reversed(span))
            return
        size = self.segment ** (level - 1)
        parts = [range(start, min(start + size, span.stop)) for start in range(span.start, span.stop, size)]
        for part in reversed(parts):
            yield from (("run", i) for i in part)
            yield from self._order(part, level - 1)


def best_segment(trips: int, carry: int, iteration: int, *, divides: bool, levels: int = 2) -> int:
    """The segment length with the least memory: sqrt(N c_b b / (c_s (b + r))) for two levels, a root for more.

    Args:
        trips: N, iterations.
        carry: b, bytes of the carries.
        iteration: b + r, bytes of tape of an iteration.
        divides: The trip count is fixed: prefer a divisor of it within a factor of two.
        levels: Levels of the schedule.
    """
    if trips < 1:
        return 1
    boundary = _SCAN_BOUNDARY if divides else _LOOP_BOUNDARY
    weight = boundary * max(carry, 1) / (_SEGMENT * max(iteration, 1))
    ideal = (trips * weight) ** (1 / levels) if levels == 2 else trips ** (1 / levels)
    shortest = _SHORTEST if iteration < _LARGE else _SHORTEST_OF_LARGE
    ideal = min(max(ideal, min(shortest, trips)), trips)
    if not divides:
        return max(1, round(ideal))
    size = levels - 1
    near = [s for s in range(max(1, int(ideal / 2)), int(ideal * 2) + 2) if trips % s**size == 0]
    return min(near, key=lambda s: abs(math.log(s / ideal))) if near else max(1, round(ideal))


def least_segment(trips: int, carry: int, iteration: int, *, levels: int) -> int:
    """The segment length up to twice the root of the trip count that keeps the fewest bytes, whatever its overhead."""
    longest = min(int(2 * max(trips, 1) ** (1 / levels)) + 1, _TRIED)

    def peak(segment: int) -> int:
        return Schedule(trips, segment, levels).peak_bytes(carry, iteration)

    return min(range(1, longest + 1), key=peak)
