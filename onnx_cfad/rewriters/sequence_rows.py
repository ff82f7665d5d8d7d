"""A sequence as the rows of a tensor: what each operator on sequences is on rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.trips import constant_of
from onnx_cfad.rewriters.recorder import Recorder


@dataclasses.dataclass(frozen=True)
class Rows:
    """The elements of a sequence, and how many of the rows are elements.

    Attributes:
        tensor: [rows, ...], an element each, from the front.
        count: The number of elements, an int64 without axes; None where all rows are elements.
    """

    tensor: ir.Value
    count: ir.Value | None = None

    @property
    def known(self) -> int | None:
        """How many rows there are, where the model says it."""
        assert self.tensor.shape is not None
        first = self.tensor.shape[0]
        return first if isinstance(first, int) else None

    @property
    def element(self) -> tuple[int, ...]:
        """The shape of an element."""
        assert self.tensor.shape is not None
        return tuple(d for d in self.tensor.shape.dims[1:] if isinstance(d, int))


class RowOperators:
    """Records what operators on sequences are on rows.

    Args:
        op: Records nodes.
        dtype: The type of an element.
        element: Its shape.
    """

    def __init__(self, op: Recorder, dtype: ir.DataType, element: Sequence[int]) -> None:
        self.op, self.dtype, self.element = op, dtype, tuple(element)

    def rows(self, tensor: ir.Value, known: int | None, count: ir.Value | None = None) -> Rows:
        """``tensor`` as rows, declared so."""
        tensor.type, tensor.shape = ir.TensorType(self.dtype), ir.Shape([known, *self.element])
        return Rows(tensor, count)

    def zeros(self, known: int) -> Rows:
        """Rows of zeros."""
        return self.rows(self.op.constant(np.zeros((known, *self.element)), self.dtype), known)

    def construct(self, elements: Sequence[ir.Value]) -> Rows:
        """SequenceConstruct."""
        tensors = [self._row(element) for element in elements]
        made = tensors[0] if len(tensors) == 1 else self.op.Concat(*tensors, axis=0)
        return self.rows(made, len(tensors))

    def split(self, source: ir.Value, axis: int, length: int, *, keepdims: bool) -> Rows:
        """SplitToSequence into parts of one length; ``keepdims`` False for parts without the axis."""
        assert source.shape is not None
        rank, size = source.shape.rank(), source.shape[axis]
        axis %= rank
        known = size // length if isinstance(size, int) else None
        if keepdims:
            parts = [-1 if known is None else known, *self.element[axis:]]
            source = self.op.Reshape(source, self.op.ints(*self.element[:axis], *parts))
            rank += 1
        order = [axis, *(k for k in range(rank) if k != axis)]
        return self.rows(self.op.Transpose(source, perm=order) if axis else self.op.Identity(source), known)

    def length(self, held: Rows) -> ir.Value:
        """SequenceLength."""
        if held.count is not None:
            return held.count
        if held.known is not None:
            return self.op.constant(np.array(held.known))
        return self._scalar(self.op.Squeeze(self.op.Shape(held.tensor, start=0, end=1), self.op.ints(0)))

    def at(self, held: Rows, place: ir.Value) -> ir.Value:
        """SequenceAt."""
        return self.op.Gather(held.tensor, self.place(held, place), axis=0)

    def insert(self, held: Rows, element: ir.Value, place: ir.Value | None) -> Rows:
        """SequenceInsert; where a count says what the elements are, there is a row left for another."""
        row = self._row(element)
        if held.count is not None:
            at = held.count if place is None else self.place(held, place)
            shifted = held.tensor if place is None else self._shifted(held, at, -1)
            more = self._scalar(self.op.Add(held.count, self.op.constant(np.array(1))))
            return self.rows(self._put(shifted, at, row), held.known, more)
        known = None if held.known is None else held.known + 1
        longer = self.rows(self.op.Concat(held.tensor, row, axis=0), known)
        if place is None:
            return longer
        at = self.place(held, place)
        return self.rows(self._put(self._shifted(longer, at, -1), at, row), known)

    def replace(self, held: Rows, element: ir.Value, place: ir.Value) -> Rows:
        """SequenceErase and SequenceInsert at one place from the front."""
        return self.rows(self._put(held.tensor, self.place(held, place), self._row(element)), held.known, held.count)

    def erase(self, held: Rows, place: ir.Value | None) -> Rows:
        """SequenceErase."""
        constant = None if place is None else constant_of(place)
        last = place is None or (constant is not None and int(constant.reshape(-1)[0]) == -1)
        if held.count is not None:
            fewer = self._scalar(self.op.Sub(held.count, self.op.constant(np.array(1))))
            kept = held.tensor if last or place is None else self._shifted(held, self.place(held, place), 1)
            return self.rows(self.op.Identity(kept) if last else kept, held.known, fewer)
        known = None if held.known is None else held.known - 1
        moved = held.tensor if last or place is None else self._shifted(held, self.place(held, place), 1)
        return self.rows(self.op.Slice(moved, self.op.ints(0), self.op.ints(-1), self.op.ints(0)), known)

    def concat(self, held: Rows, axis: int, *, new_axis: bool) -> ir.Value:
        """ConcatFromSequence."""
        rows = self.exact(held)
        rank = len(self.element)
        axis %= rank + new_axis
        order = list(range(1, rank + 1))
        order.insert(axis, 0)
        turned = rows.tensor if axis == 0 else self.op.Transpose(rows.tensor, perm=order)
        if new_axis:
            return self.op.Identity(turned)
        joined = -1 if rows.known is None else rows.known * self.element[axis]
        shape = [*self.element[:axis], joined, *self.element[axis + 1 :]]
        return self.op.Reshape(turned, self.op.ints(*shape), allowzero=None if joined else 1)

    def exact(self, held: Rows, known: int | None = None) -> Rows:
        """The elements alone; ``known`` where their number is."""
        if held.count is None:
            return held
        if known is not None and known == held.known:
            return self.rows(self.op.Identity(held.tensor), known)
        end = self.op.Reshape(held.count, self.op.ints(1)) if known is None else self.op.ints(known)
        return self.rows(self.op.Slice(held.tensor, self.op.ints(0), end, self.op.ints(0)), known)

    def longer(self, held: Rows, more: int | ir.Value) -> Rows:
        """``held``, whose rows are all elements, with ``more`` rows behind: a number, or an int64 without axes."""
        count = self.length(held)
        if isinstance(more, int):
            if held.known == 0:
                return Rows(self.zeros(more).tensor, count)
            tensor = self.op.Concat(held.tensor, self.zeros(more).tensor, axis=0) if more else held.tensor
            return self.rows(tensor, None if held.known is None else held.known + more, count)
        dims = [self.op.Reshape(more, self.op.ints(1)), *([self.op.ints(*self.element)] if self.element else [])]
        zero = self.op.constant(np.zeros(()), self.dtype)
        added = self.op.Expand(zero, self.op.Concat(*dims, axis=0) if len(dims) > 1 else dims[0])
        return self.rows(self.op.Concat(held.tensor, added, axis=0), None, count)

    def place(self, held: Rows, place: ir.Value) -> ir.Value:
        """A place as an int64 without axes; the rows that a negative one counts back from are the elements."""
        constant = constant_of(place)
        if constant is not None:
            number = int(constant.reshape(-1)[0])
            if number >= 0:
                return self.op.constant(np.array(number))
            if held.count is None and held.known is not None:
                return self.op.constant(np.array(number + held.known))
        if place.dtype != ir.DataType.INT64:
            place = self.op.Cast(place, to=int(ir.DataType.INT64))
        if place.shape is None or place.shape.rank() != 0:
            place = self.op.Reshape(place, self.op.constant(np.zeros(0, np.int64)))
        is_negative = self.op.Less(place, self.op.constant(np.array(0)))
        return self._scalar(self.op.Where(is_negative, self.op.Add(place, self.length(held)), place))

    def _shifted(self, held: Rows, place: ir.Value, step: int) -> ir.Value:
        """The rows from ``place`` on moved by one: to the front for 1, to the back for -1."""
        if held.known is not None:
            numbers = self.op.constant(np.arange(held.known))
        else:
            end = self._scalar(self.op.Squeeze(self.op.Shape(held.tensor, start=0, end=1), self.op.ints(0)))
            numbers = self.op.Range(self.op.constant(np.array(0)), end, self.op.constant(np.array(1)))
        moves = self.op.GreaterOrEqual(numbers, place) if step > 0 else self.op.Greater(numbers, place)
        moved = self.op.Add(numbers, self.op.Mul(self.op.Cast(moves, to=int(ir.DataType.INT64)), self.op.ints(step)))
        if step > 0:
            moved = self.op.Min(moved, self.op.Sub(self._row_count(held), self.op.constant(np.array(1))))
        return self.op.Gather(held.tensor, moved, axis=0)

    def _row_count(self, held: Rows) -> ir.Value:
        return self.length(Rows(held.tensor))

    def _put(self, tensor: ir.Value, place: ir.Value, row: ir.Value) -> ir.Value:
        return self.op.ScatterND(tensor, self.op.Reshape(place, self.op.ints(1, 1)), row)

    def _row(self, element: ir.Value) -> ir.Value:
        return self.op.Unsqueeze(element, self.op.ints(0))

    @staticmethod
    def _scalar(value: ir.Value) -> ir.Value:
        value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        return value
