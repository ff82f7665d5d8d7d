"""Rows of a tensor in the order in which a loop reads them, made in front of the loop.

What is read at ``step * i + first`` becomes row i. A place below zero counts from the end where a Gather reads it; a
place outside of the tensor has no row, so that to read it stays an error of the iteration that does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.graph.iteration import Index, Linear, dimension
from onnx_cfad.rewriters.linear_integers import Number, number, vector
from onnx_cfad.rewriters.recorder import Recorder

_TO_END = 2**63 - 1
_TO_START = -(2**62)
_NOWHERE = 2**62  # an end that leaves nothing of a Slice backwards
_MOST_PARTS = 64  # Slices that a window is put together from
_FEW_PARTS = 4  # so often may a tensor of any size be there
_MOST_BYTES = 1 << 26  # of all windows of a tensor, where it would be there more often


@dataclasses.dataclass(frozen=True)
class Reading:
    """The rows of ``source`` along ``axis`` that a loop reads at ``index``.

    Attributes:
        source: The tensor, of known rank.
        axis: Counted from the front.
        index: The place that iteration i reads.
        trips: How often the loop runs at most; None without a limit.
        wraps: A place below zero counts from the end.
        stops: The place -1 is an error.
        length: The rows that an iteration reads from its place on; 0 for one, without the axis.
    """

    source: ir.Value
    axis: int
    index: Index
    trips: Linear | None
    wraps: bool
    stops: bool = False
    length: int = 0

    @property
    def rows(self) -> Linear:
        """How many rows there are."""
        return dimension(self.source, self.axis)

    @property
    def last(self) -> Linear | None:
        """The place that the last iteration reads."""
        return None if self.trips is None else self.index.first + self.trips.plus(-1).times(self.index.step)

    @property
    def stays_inside(self) -> bool:
        """Whether all that any iteration reads is certainly there, counted from the front."""
        if self.last is None:
            return False
        lowest, highest = (self.index.first, self.last)[:: 1 if self.index.step > 0 else -1]
        return lowest.is_at_least(0) and (self.rows - highest.plus(max(self.length, 1))).is_at_least(0)


Construction = Callable[[Recorder], ir.Value]


def construction(read: Reading) -> Construction | None:
    """What records the tensor of which iteration i reads row i; None where there is no way to it."""
    if read.length > 1:
        return _windows(read)
    return _ascending(read) if read.index.step > 0 else _descending(read)


def _ascending(read: Reading) -> Construction | None:
    if read.index.first.is_at_least(0):
        return lambda op: _Rows(read, op).forwards()
    return (lambda op: _Rows(read, op).forwards_around()) if read.index.step == 1 and read.wraps else None


def _descending(read: Reading) -> Construction | None:
    first = read.index.first
    inside = read.last is not None and read.last.is_at_least(0)
    from_end = first.constant is not None and first.number < 0 and read.wraps
    stopping = first.constant is not None and first.number >= 0 and read.stops and read.index.step == -1
    if inside or from_end or stopping:
        return lambda op: _Rows(read, op).backwards()
    return (lambda op: _Rows(read, op).backwards_around()) if read.index.step == -1 and read.wraps else None


class _Rows:
    """Records Slices of what is read."""

    def __init__(self, read: Reading, op: Recorder) -> None:
        self.read, self.op = read, op
        self.first, self.step, self.whole = read.index.first, read.index.step, read.rows

    def forwards(self) -> ir.Value:
        """From a place that is not below zero on."""
        if self.step == 1 and self.first.constant == 0:
            return self.read.source
        return self.slice(self.number(self.first), self.end_forwards(), self.step)

    def forwards_around(self) -> ir.Value:
        """From a place that may be below zero, to the end of the tensor and on from its start."""
        if self.first.constant is not None and (self.whole + self.first).is_at_least(0):
            return self.joined(self.slice(self.first.number, _TO_END, 1), self.slice(0, self.end_forwards(), 1))
        first, whole = self.vector(self.first), self.vector(self.whole)
        before = self.op.Less(first, self.op.Neg(whole))
        outside = self.op.Or(before, self.op.GreaterOrEqual(first, 0))
        on = self.op.Where(before, whole, self.op.Max(first, 0))
        return self.joined(
            self.slice(self.op.Where(outside, whole, first), _TO_END, 1), self.slice(on, self.end_forwards(), 1)
        )

    def end_forwards(self) -> Number:
        """Where no iteration reads any more, or the end of the tensor."""
        last = self.read.last
        if last is None or (last.plus(1) - self.whole).is_at_least(0):
            return _TO_END
        if last.constant is not None:
            return max(last.number + 1, 0)
        end = self.op.Add(self.way(), self.vector(self.first))
        return self.op.Max(end, 0)

    def way(self) -> ir.Value:
        """How far the iterations get, or as far past the end of the tensor."""
        assert self.read.trips is not None
        rows = self.whole if self.first.is_at_least(0) else self.whole.times(2)  # it may come by an element twice
        count = self.op.Min(self.vector(self.read.trips), self.vector(rows))
        return count if self.step == 1 else self.op.Mul(count, self.step)

    def backwards(self) -> ir.Value:
        """Down to the start of the tensor."""
        return self.slice(self.number(self.first), self.where_it_starts_inside(self.end_backwards()), self.step)

    def backwards_around(self) -> ir.Value:
        """Down to the start of the tensor, and on from its end."""
        return self.joined(self.backwards(), self.slice(-1, self.end_around(), -1))

    def end_backwards(self) -> Number:
        """Where no iteration reads any more, or the start of the tensor."""
        last = self.read.last
        if last is None:
            return _TO_START
        end = last.plus(self.step)
        if self.first.constant is not None and end.constant is not None:
            return _TO_START if self.first.number >= 0 > end.number else end.number
        if end.constant is not None and end.number < 0 and self.starts_certainly:
            return _TO_START
        first = self.vector(self.first)
        place = self.op.Add(first, self.way())
        passes = self.op.Less(place, 0)
        if not self.starts_certainly:  # what starts below zero is counted from the end
            passes = self.op.And(passes, self.op.GreaterOrEqual(first, 0))
        return self.op.Where(passes, self.op.ints(_TO_START), place)

    @property
    def starts_certainly(self) -> bool:
        """Whether the first place is not below zero in a loop that runs."""
        last = self.read.last
        return self.first.is_at_least(0) or (last is not None and last.is_at_least(0))

    def end_around(self) -> Number:
        """How far down the iterations get that have passed the start."""
        rest: Number = _TO_START
        if self.read.trips is not None:
            more = self.number(self.read.trips.plus(-1) - self.first)
            rest = -1 - max(more, 0) if isinstance(more, int) else self.op.Sub(-1, self.op.Max(more, 0))
        from_start, inside = self.first.is_at_least(0), (self.whole - self.first.plus(1)).is_at_least(0)
        if from_start and inside:
            return rest
        first = self.vector(self.first)
        empty = None if from_start else self.op.Less(first, 0)  # it is at the end of the tensor already
        if not inside:
            outside = self.op.GreaterOrEqual(first, self.vector(self.whole))
            empty = outside if empty is None else self.op.Or(empty, outside)
        return self.op.Where(empty, self.op.ints(-1), self.op.ints(rest) if isinstance(rest, int) else rest)

    def where_it_starts_inside(self, end: Number) -> Number:
        """``end``, or one that leaves nothing where the first place is outside of the tensor."""
        below_end = (self.whole - self.first.plus(1)).is_at_least(0)
        from_start = self.starts_certainly or self.first.is_at_least(-1) or (self.whole + self.first).is_at_least(0)
        if below_end and from_start:
            return end
        first, whole = self.vector(self.first), self.vector(self.whole)
        inside = self.op.Less(first, whole)
        if not from_start:
            inside = self.op.And(inside, self.op.GreaterOrEqual(first, self.op.Neg(whole)))
        end = self.op.ints(end) if isinstance(end, int) else end
        return self.op.Where(inside, end, self.op.ints(_NOWHERE))

    def slice(self, start: Number, end: Number, step: int) -> ir.Value:
        bounds = [self.op.ints(x) if isinstance(x, int) else x for x in (start, end, self.read.axis, step)]
        return self.op.Slice(self.read.source, *bounds)

    def joined(self, *parts: ir.Value) -> ir.Value:
        return self.op.Concat(*parts, axis=self.read.axis)

    def number(self, linear: Linear) -> Number:
        return number(self.op, linear)

    def vector(self, linear: Linear) -> ir.Value:
        return vector(self.op, linear)


def _windows(read: Reading) -> Construction | None:
    """Windows of rows, each put together from parts as long as the step, where all sizes are known.

    They take the memory of the tensor as many times as they overlap, and so do their cotangents: where that is more
    than ``_FEW_PARTS`` times, they stay Slices unless all of them are small.
    """
    first, step, count = (
        read.index.first.constant,
        abs(read.index.step),
        None if read.trips is None else read.trips.constant,
    )
    if first is None or not count or count < 0 or not read.stays_inside:
        return None
    parts = -(-read.length // step)
    if parts > _MOST_PARTS or (parts > _FEW_PARTS and not _are_small(read, count)):
        return None
    lowest = first if read.index.step > 0 else first - step * (count - 1)

    def record(op: Recorder) -> ir.Value:
        rows = _Windows(read, op).of(lowest, step, count)
        if read.index.step > 0:
            return rows
        return op.Slice(rows, op.ints(-1), op.ints(_TO_START), op.ints(read.axis), op.ints(-1))

    return record


def _are_small(read: Reading, count: int) -> bool:
    source = read.source
    assert source.shape is not None
    assert source.dtype is not None
    row = [dim for axis, dim in enumerate(source.shape.dims) if axis != read.axis]
    sizes = [dim for dim in row if isinstance(dim, int)]
    return len(sizes) == len(row) and math.prod([*sizes, count, read.length]) * source.dtype.itemsize <= _MOST_BYTES


class _Windows:
    """Records windows that begin a step after one another."""

    def __init__(self, read: Reading, op: Recorder) -> None:
        self.read, self.op, self.axis = read, op, read.axis

    def of(self, lowest: int, step: int, count: int) -> ir.Value:
        """``count`` windows from the place ``lowest`` on: [.., count, length, ..]."""
        parts = -(-self.read.length // step)
        tiles = self.tiles(lowest, step, count + parts - 1)
        joined = [self.slice(tiles, k, k + count, self.axis) for k in range(parts)] if parts > 1 else [tiles]
        whole = self.op.Concat(*joined, axis=self.axis + 1) if parts > 1 else tiles
        return whole if parts * step == self.read.length else self.slice(whole, 0, self.read.length, self.axis + 1)

    def tiles(self, lowest: int, step: int, count: int) -> ir.Value:
        """Rows next to one another, ``step`` each: [.., count, step, ..]; behind the tensor there are zeros."""
        op, axis, source = self.op, self.axis, self.read.source
        rows = self.read.rows.constant
        assert rows is not None
        assert source.shape is not None
        end, rank = lowest + step * count, source.shape.rank()
        used = source if (lowest, rows) == (0, end) else self.slice(source, lowest, end, axis)
        if end > rows:
            widths = [0] * (2 * rank)
            widths[rank + axis] = end - rows
            used = op.Pad(used, op.ints(*widths))
        if step == 1:
            return op.Unsqueeze(used, op.ints(axis + 1))
        before = [op.Shape(source, start=0, end=axis)] if axis else []
        behind = [op.Shape(source, start=axis + 1)] if axis + 1 < rank else []
        return op.Reshape(used, op.Concat(*before, op.ints(count, step), *behind, axis=0), allowzero=1)

    def slice(self, x: ir.Value, start: int, end: int, axis: int) -> ir.Value:
        return self.op.Slice(x, self.op.ints(start), self.op.ints(end), self.op.ints(axis))
