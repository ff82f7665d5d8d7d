"""Where values of a whole-loop function are: a flat buffer with a shape, strides and an offset. Runs in the worker."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnx_cfad.targets.tvm.loop_tvm import analyzer, tirx, tvm, tvm_ffi

Array = np.ndarray[Any, Any]

_VECTORS = (64, 32, 16, 8, 4)


@dataclasses.dataclass(frozen=True)
class View:
    """Elements of a flat buffer: element ``i`` is at ``offset + sum(i[k] * strides[k])``.

    Attributes:
        buffer: The buffer, of one dimension.
        shape: Extents: numbers, or TIR expressions of the function's symbols.
        strides: In elements.
        offset: A number or a TIR expression.
        scalar: The value itself, where an expression for it is known (the iteration number).
        bound: A number that ``scalar`` is below.
    """

    buffer: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any = 0
    scalar: Any = None
    bound: int | None = None

    @property
    def dtype(self) -> str:
        """The element type, as TVM writes it."""
        return str(self.buffer.dtype)

    @property
    def size(self) -> Any:
        """How many elements it has."""
        return product(self.shape)

    def at(self, indices: Sequence[Any]) -> Any:
        """The place of an element in the buffer."""
        place: Any = self.offset
        for index, stride in zip(indices, self.strides, strict=True):
            place = place + index * stride
        return place if isinstance(place, tvm.ir.Expr) else int64(place)

    def load(self, indices: Sequence[Any] = ()) -> Any:
        """Reads an element."""
        return tirx.BufferLoad(self.buffer, [self.at(indices)])

    def store(self, value: Any, indices: Sequence[Any] = ()) -> Any:
        """The statement that writes an element."""
        return tirx.BufferStore(self.buffer, value, [self.at(indices)])

    def row(self, axis: int, index: Any) -> View:
        """The slice ``index`` along ``axis``, without that axis."""
        axis %= len(self.shape)
        rest = [k for k in range(len(self.shape)) if k != axis]
        offset = self.offset + index * self.strides[axis]
        return View(self.buffer, tuple(self.shape[k] for k in rest), tuple(self.strides[k] for k in rest), offset)

    def has_shape(self, shape: Sequence[Any]) -> bool:
        """Whether its extents are provably those of ``shape``."""
        return len(shape) == len(self.shape) and all(same(a, b) for a, b in zip(self.shape, shape, strict=True))

    def is_contiguous(self) -> bool:
        """Whether the elements are in row-major order without gaps."""
        return all(same(a, b) for a, b in zip(self.strides, row_major(self.shape), strict=True))

    def reshaped(self, shape: Sequence[Any]) -> View | None:
        """The same elements in another shape; None where that takes a copy."""
        if not self.is_contiguous() or not same(product(shape), self.size):
            return None
        return View(self.buffer, tuple(shape), row_major(shape), self.offset, self.scalar)


def flat_buffer(size: Any, dtype: str, name: str) -> Any:
    """A buffer of one dimension that is aligned to its elements alone, since a caller's arrays are."""
    return tirx.decl_buffer([size], dtype, name=name, data_alignment=np.dtype(dtype).itemsize, layout=None)


def rewritten(node: Any, kind: Any, change: Callable[[Any], Any], order: str = "post") -> Any:
    """``node`` with ``change`` made at every node of the type ``kind`` below it."""
    return tvm_ffi.structural_map(node, ((kind, change),), order=order)


def int64(value: int) -> Any:
    """A constant index."""
    return tirx.const(value, "int64")


def product(shape: Sequence[Any]) -> Any:
    """The number of elements of a shape."""
    return math.prod(shape)


def row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def same(a: Any, b: Any) -> bool:
    """Whether two extents are provably equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(analyzer().can_prove_equal(a if not isinstance(a, int) else int64(a), b))


def flat(buffer: Any, shape: Sequence[Any]) -> View:
    """A whole buffer in row-major order."""
    return View(buffer, tuple(shape), row_major(shape))


def copy(source: View, target: View) -> Any:
    """The statement that copies all elements of ``source`` to ``target``."""
    if source.is_contiguous() and target.is_contiguous():
        source = View(source.buffer, (source.size,), (1,), source.offset)
        target = View(target.buffer, (target.size,), (1,), target.offset)
    shape = source.shape
    names = [tirx.Var(f"c{k}", "int64") for k in range(len(shape))]
    statement = target.store(source.load(names), names)
    for name, extent in reversed(list(zip(names, shape, strict=True))):
        statement = loop(name, extent, statement)
    return statement


def loop(name: Any, extent: Any, body: Any) -> Any:
    """A serial loop from 0."""
    extent = int64(extent) if isinstance(extent, int) else extent
    return tirx.For(name, int64(0), extent, tirx.ForKind.SERIAL, body)


def sequence(statements: Sequence[Any]) -> Any:
    """Statements one after the other; there may be none."""
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def vector_length(extent: Any, longest: int = 64) -> int:
    """The longest vector that divides an extent; 1 where none does."""
    if not isinstance(extent, int):
        return 1
    return next((v for v in _VECTORS if v <= longest and extent % v == 0), 1)
