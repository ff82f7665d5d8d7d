"""Sequences and optionals of tensors. The cotangent of a sequence is a sequence: same length, same shapes.

An absent position is the end (where SequenceInsert adds, and the element that SequenceErase takes); a negative one
counts from the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, Update, full, op, zeros_like
from onnx_cfad.adjoint.subgraph_operators import cond, loop
from onnx_cfad.rules.registry import Cotangent, nondifferentiable, vjp

nondifferentiable("SequenceEmpty", reason="it holds nothing")
nondifferentiable("SequenceLength", "OptionalHasElement", reason="the number of elements is an integer")


def empty_like(sequence: Expr) -> Expr:
    """An empty sequence of the same type."""
    return sequence.builder.call("SequenceEmpty", [], {"dtype": int(_element_dtype(sequence))}, types=[sequence.type])[
        0
    ]


def zeros_like_sequence(sequence: Expr) -> Expr:
    """A sequence (or optional) of zeros in the shapes of the elements of ``sequence``."""
    if isinstance(sequence.type, ir.OptionalType):
        return _zeros_like_optional(sequence)
    return _mapped(sequence, lambda inner, index: zeros_like(_element(sequence, inner, index)))


def add_sequences(a: Expr, b: Expr) -> Expr:
    """The elementwise sum of two cotangents of one sequence (or optional)."""
    if isinstance(a.type, ir.OptionalType):
        return _optional(add_any(_content(a), _content(b)))
    return _mapped(a, lambda inner, index: _element(a, inner, index) + _element(b, inner, index))


def add_any(a: Expr, b: Expr) -> Expr:
    """The sum of two cotangents of one value: tensors, sequences or optionals."""
    return a + b if a.is_tensor else add_sequences(a, b)


def _mapped(sequence: Expr, element: Callable[[Builder, Expr], Expr]) -> Expr:
    """A sequence as long as ``sequence`` of what ``element`` makes from a builder and a position."""

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        return [op.SequenceInsert(carries[0], element(inner, index))], []

    (result,), _ = loop(op.SequenceLength(sequence), body, [empty_like(sequence)], name="elements")
    result.value.shape = sequence.value.shape
    return result


def _element(sequence: Expr, inner: Builder, index: Expr) -> Expr:
    """One element of an outer sequence inside a loop body."""
    element = op.SequenceAt(inner.expr(sequence.value), index)
    element.value.shape = sequence.value.shape
    return element


def _element_dtype(sequence: Expr) -> ir.DataType:
    assert isinstance(sequence.type, ir.SequenceType)
    return sequence.type.elem_type.dtype


def _last(position: Expr | None, sequence: Expr) -> Expr:
    """The position, where absent means the last element."""
    return sequence.builder.constant(np.asarray(-1)) if position is None else position


def _after_insertion(position: Expr) -> Expr:
    """Where an element inserted at ``position`` is in the longer sequence; what counts from its end stays so."""
    if position.const is not None:
        number = int(position.const.reshape(-1)[0])
        return position if number >= 0 else position.builder.constant(np.asarray(number - 1))
    return op.Where(op.Less(position, 0), op.Sub(position, 1), position)


def _from_front(position: Expr, length: Callable[[], Expr], offset: int = 0) -> Expr:
    """A negative ``position`` counted from the front of a sequence of ``length() + offset`` elements."""
    if position.const is not None and np.all(position.const >= 0):
        return position
    position = position.cast(ir.DataType.INT64)
    return op.Where(op.Less(position, 0), op.Add(position, op.Add(length(), offset)), position)


@vjp("SequenceConstruct")
def sequence_construct(ct: Expr, y: Expr, *xs: Expr) -> tuple[Callable[[], Expr], ...]:
    return tuple(
        (lambda index=index: op.SequenceAt(ct, ct.builder.constant(np.asarray(index)))) for index in range(len(xs))
    )


@vjp("SequenceInsert")
def sequence_insert(
    ct: Expr, y: Expr, sequence: Expr, tensor: Expr, position: Expr | None = None
) -> tuple[Callable[[], Expr], ...]:
    place = _last(None, ct) if position is None else _after_insertion(position)
    return lambda: op.SequenceErase(ct, place), lambda: op.SequenceAt(ct, place)


@vjp("SequenceErase")
def sequence_erase(ct: Expr, y: Expr, sequence: Expr, position: Expr | None = None) -> Callable[[], Expr]:
    def back() -> Expr:
        zeros = zeros_like(op.SequenceAt(sequence, _last(position, sequence)))
        if position is None:
            return op.SequenceInsert(ct, zeros)
        return op.SequenceInsert(ct, zeros, _from_front(position, lambda: op.SequenceLength(ct), 1))

    return back


@vjp("SequenceAt")
def sequence_at(ct: Expr, y: Expr, sequence: Expr, position: Expr) -> Update:
    def add(total: Expr | None) -> Expr:
        base = zeros_like_sequence(sequence) if total is None else total
        element = ct if total is None else op.SequenceAt(total, position) + ct
        place = _from_front(position, lambda: op.SequenceLength(base))
        return op.SequenceInsert(op.SequenceErase(base, place), element, place)

    return Update(add)


@vjp("ConcatFromSequence")
def concat_from_sequence(ct: Expr, y: Expr, sequence: Expr, *, axis: int, new_axis: int) -> Callable[[], Expr]:
    if new_axis:
        return lambda: op.SplitToSequence(ct, None, axis=axis, keepdims=0)
    return lambda: op.SplitToSequence(ct, _lengths(sequence, axis), axis=axis)


def _lengths(sequence: Expr, axis: int) -> Expr:
    """The dimension of every element along ``axis``, as an int64 vector."""
    known = sequence.dims[axis] if sequence.value.shape is not None else None
    count = op.SequenceLength(sequence)
    if known is not None:
        return full(count.reshape([1]), known, ir.DataType.INT64, sequence.builder)

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        return [], [_element(sequence, inner, index).dim(axis)]

    _, (lengths,) = loop(count, body, [], name="lengths")
    return op.Reshape(lengths, [-1])


@vjp("SplitToSequence")
def split_to_sequence(
    ct: Expr, y: Expr, x: Expr, split: Expr | None = None, *, axis: int, keepdims: int
) -> Callable[[], Expr]:
    new_axis = int(split is None and not keepdims)
    known = x.dims[axis] if x.has_rank else None
    joined = lambda: _shaped_like(op.ConcatFromSequence(ct, axis=axis, new_axis=new_axis), x)  # noqa: E731
    if known:
        return joined

    def joined_inside(inner: Builder) -> list[Expr]:
        return [op.ConcatFromSequence(inner.expr(ct.value), axis=axis, new_axis=new_axis)]

    def nothing(inner: Builder) -> list[Expr]:
        return [zeros_like(inner.expr(x.value))]

    # An axis of length 0 gives an empty sequence, which ConcatFromSequence refuses.
    return lambda: cond(op.SequenceLength(ct) > 0, joined_inside, nothing, name="any_elements")[0]


def _shaped_like(result: Expr, x: Expr) -> Expr:
    result.value.shape = x.value.shape
    return result


# Optionals: the cotangent of an optional is an optional of the cotangent of its content.


@vjp("Optional")
def optional(ct: Expr, y: Expr, x: Expr | None = None) -> Expr | None:
    return None if x is None else _content(ct)


@vjp("OptionalGetElement")
def optional_get_element(ct: Expr, y: Expr, x: Expr) -> Cotangent:
    return _optional(ct) if isinstance(x.type, ir.OptionalType) else ct


def _content(x: Expr) -> Expr:
    if not isinstance(x.type, ir.OptionalType):
        return x
    return op.OptionalGetElement(x, types=[x.type.elem_type])


def _optional(x: Expr) -> Expr:
    return op.Optional(x, types=[ir.OptionalType(x.type)])


def _zeros_like_optional(x: Expr) -> Expr:
    """An optional of zeros, empty where ``x`` is empty."""
    type_ = x.type
    assert isinstance(type_, ir.OptionalType)

    def some(inner: Builder) -> list[Expr]:
        content = _content(inner.expr(x.value))
        return [_optional(zeros_like(content) if content.is_tensor else zeros_like_sequence(content))]

    def none(inner: Builder) -> list[Expr]:
        return list(inner.call("Optional", [], {"type": ir.TypeAndShape(type_.elem_type, None)}, types=[type_]))

    return cond(op.OptionalHasElement(x, types=[ir.TensorType(ir.DataType.BOOL)]), some, none, name="has_element")[0]
