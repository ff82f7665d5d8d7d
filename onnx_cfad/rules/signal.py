"""Fourier transforms: the adjoint of a discrete transform is the opposite one, scaled; complex numbers are pairs.

For the real inner product of such pairs the adjoint of F is its conjugate transpose: n times the inverse transform.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.rules.padding import pad_along
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import scatter_add


@vjp("DFT")
def dft(
    ct: Expr, y: Expr, x: Expr, dft_length: Expr | None = None, axis: Expr | None = None, *, inverse: int, onesided: int
) -> tuple[Expr, None, None]:
    axis = _axis_of(y, axis)
    size = _dim(x, axis)
    own = _dim(y, axis) if inverse and onesided else size  # n bins are half of 2 n - 2 numbers
    length = own if dft_length is None else _vector(dft_length)
    if inverse and onesided:
        half = _transform(ct, axis, onesided=1)
        bins = op.Add(op.Div(length, 2), 1)
        result = _fitted(half * _multiplicity(ct, axis, length, bins), axis, bins, size) / _number(length, ct)
    elif inverse:
        result = _fitted(_transform(ct, axis), axis, length, size) / _number(length, ct)
    else:
        whole = _fitted(ct, axis, _dim(ct, axis), length)
        result = _fitted(_transform(whole, axis, inverse=1), axis, length, size) * _number(length, ct)
    return _with_parts(result, x), None, None


def _vector(number: Expr) -> Expr:
    """An integer input as an int64 vector of one element."""
    if number.const is not None:
        return number.builder.constant([int(number.const.reshape(-1)[0])])
    return op.Reshape(number, [1]).cast(ir.DataType.INT64)


def _number(length: Expr, like: Expr) -> Expr:
    """A length in the element type of ``like``."""
    return (
        length.cast(like.dtype) if length.const is None else like.builder.constant(float(length.const[0]), like.dtype)
    )


def _with_parts(x: Expr, like: Expr) -> Expr:
    """``x`` [..., 2] without the imaginary parts where ``like`` has none."""
    parts = like.dims[-1] if like.has_rank else None
    return x if parts == 2 else op.Slice(x, [0], like.dim(-1), [-1])


def _axis_of(y: Expr, axis: Expr | None) -> Expr:
    """The transformed axis as a vector of one element; before opset 20 it is an attribute."""
    if axis is not None:
        return _vector(axis)
    node = y.value.producer()
    attribute = None if node is None else node.attributes.get("axis")
    if attribute is not None:
        return y.builder.constant([attribute.as_int()])
    return y.builder.constant([-2 if y.builder.opset >= 20 else 1])


def _dim(x: Expr, axis: Expr) -> Expr:
    """The size of ``x`` along a computed axis."""
    return op.Gather(x.shape, axis) if axis.const is None else x.dim(int(axis.const[0]))


def _transform(x: Expr, axis: Expr, *, inverse: int = 0, onesided: int = 0) -> Expr:
    if x.builder.opset >= 20:
        return op.DFT(x, None, op.Squeeze(axis, [0]), inverse=inverse, onesided=onesided)
    assert axis.const is not None  # an attribute there
    return op.DFT(x, None, axis=int(axis.const[0]), inverse=inverse, onesided=onesided)


def _fitted(x: Expr, axis: Expr, size: Expr, length: Expr) -> Expr:
    """``x``, of ``size`` along ``axis``, cut or filled with zeros to ``length``."""
    if size.value is length.value:
        return x
    return pad_along(x, op.Concat([0], length - size, axis=0), axis)


def _multiplicity(x: Expr, axis: Expr, length: Expr, bins: Expr) -> Expr:
    """How many terms of the whole transform each of ``bins`` bins stands for: 1 or 2, shaped to multiply ``x``."""
    numbers = op.Range(0, op.Squeeze(bins, [0]), 1)
    single = op.Or(op.Equal(numbers, 0), op.Equal(numbers * 2, length))
    rank = op.Shape(op.Shape(x))
    place = where(axis < 0, axis + rank, axis)
    shape = op.ScatterElements(op.Expand([1], rank), place, bins, axis=0)
    return op.Reshape(where(single, x.builder.constant(1, x.dtype), 2), shape)


@vjp("STFT")
def stft(
    ct: Expr,
    y: Expr,
    signal: Expr,
    frame_step: Expr,
    window: Expr | None = None,
    frame_length: Expr | None = None,
    *,
    onesided: int,
) -> tuple[Callable[[], Expr], None, Callable[[], Expr], None]:
    axis = ct.builder.constant([2])
    length = _stft_length(window, frame_length)
    whole = _fitted(ct, axis, ct.dim(2), length) if onesided else ct
    frames = _with_parts(_transform(whole, axis, inverse=1) * _number(length, ct), signal)  # [N, frames, length, parts]
    starts = op.Range(0, op.Squeeze(y.dim(1), [0]), 1) * _vector(frame_step)
    places = starts.unsqueeze([1]) + op.Range(0, op.Squeeze(length, [0]), 1).unsqueeze([0])

    def by_signal() -> Expr:
        shares = frames if window is None else frames * window.unsqueeze([1])
        flat = op.Reshape(shares, op.Concat(op.Shape(signal, start=0, end=1), [-1], signal.dim(-1), axis=0))
        indices = op.Reshape(places, [1, -1, 1])
        return scatter_add(None, signal, op.Expand(indices, op.Shape(flat)), flat, 1)

    def by_window() -> Expr:
        read = op.Gather(signal, places, axis=1)
        return wide(frames * read).sum([0, 1, 3]).cast(ct.dtype)

    return by_signal, None, by_window, None


def _stft_length(window: Expr | None, frame_length: Expr | None) -> Expr:
    if frame_length is not None:
        return _vector(frame_length)
    assert window is not None  # one of the two gives the length
    return window.dim(0)
