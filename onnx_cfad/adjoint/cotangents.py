"""Cotangents on their way backwards: contributions to each value are collected and summed when the value is reached."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, Update, concat, op
from onnx_cfad.adjoint.parts import joined_parts
from onnx_cfad.graph.dims import same_dim
from onnx_cfad.graph.trips import constant_of

_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_EXACT_SUM = 1024  # elements of a 16-bit type summed in that type


class Cotangents:
    """The contributions collected so far, by primal value, in the order they were met.

    Args:
        builder: Records the reverse pass.
        held: Values whose cotangents the sweep leaves where they are, for the region's own use.
        inside: The body of the loop whose reverse pass contracts products with captured values in the end, and the
            branches in it down to this region; empty where there is no such loop.
    """

    def __init__(
        self, builder: Builder, held: frozenset[ir.Value] = frozenset(), inside: frozenset[ir.Graph] = frozenset()
    ) -> None:
        self.builder = builder
        self.held = held
        self.inside = inside
        self._pending: dict[ir.Value, list[Expr | Update]] = {}

    def add(self, value: ir.Value, contribution: Expr | Update) -> None:
        """Adds a contribution to the cotangent of ``value``."""
        self._pending.setdefault(value, []).append(contribution)

    def take(self, value: ir.Value, start: Expr | None = None) -> Expr | None:
        """Removes and gives the sum of the contributions to ``value`` (and ``start``); None stands for zero."""
        return accumulate(self._pending.pop(value, []), value, start)

    def contributions(self, value: ir.Value) -> list[Expr | Update]:
        """The contributions to ``value`` so far, which may be changed."""
        return self._pending.setdefault(value, [])

    def forget_empty(self, value: ir.Value) -> None:
        """Forgets ``value`` where no contribution is left."""
        if not self._pending.get(value, True):
            del self._pending[value]

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._pending

    def __iter__(self) -> Iterator[ir.Value]:
        """The values that have contributions."""
        return iter(list(self._pending))


def accumulate(contributions: list[Expr | Update], value: ir.Value, start: Expr | None) -> Expr | None:
    """Sums ``contributions`` to the cotangent of ``value`` onto ``start``; tensors first, then updates."""
    parts = [*([] if start is None else [start]), *(part for part in contributions if isinstance(part, Expr))]
    total = summed(parts) if parts else None
    if total is not None and total.value.shape is None and total.is_tensor:
        total.value.shape = value.shape
    for contribution in contributions:
        if isinstance(contribution, Update):
            total = contribution.apply(total)
    return total


def summed(parts: Sequence[Expr]) -> Expr:
    """The sum of cotangents of one value, of which there is one at least."""
    first, *others = parts
    if not others:
        return first
    if not first.is_tensor:
        from onnx_cfad.rules.sequences import add_sequences  # noqa: PLC0415 - rules are built on expressions

        return functools.reduce(add_sequences, parts)
    others = [other.cast(first.dtype) for other in others]
    joined = joined_parts([first, *others])
    if joined is not None:
        first, *others = joined
        if not others:
            return first
    return first + others[0] if len(others) == 1 else op.Sum(first, *others)


def guarded(cotangent: Expr, result: Expr) -> Expr:
    """``result``, but exactly 0 where it is NaN only because a zero ``cotangent`` met an infinite derivative.

    The derivative with respect to the cotangent stays exact elsewhere, so that second derivatives are right.
    """
    if _vanishes(result.value, cotangent.value):
        return result
    cut = op.And(op.Equal(cotangent, 0), op.IsNaN(result))
    return op.Where(cut, 0, result)


def _vanishes(result: ir.Value, cotangent: ir.Value) -> bool:
    """Whether ``result`` is 0 wherever ``cotangent`` is, whatever else it is made of: a choice of these two, scaled."""
    if result is cotangent:
        return True
    node, known = result.producer(), constant_of(result)
    if known is not None:
        return not known.any()
    if node is None or node.domain != "":
        return False
    if node.op_type == "Where":
        return all(value is not None and _vanishes(value, cotangent) for value in node.inputs[1:])
    if node.op_type in ("Neg", "Identity"):
        return node.inputs[0] is not None and _vanishes(node.inputs[0], cotangent)
    if node.op_type == "Mul":
        one, other = node.inputs
        return _vanishes_scaled(one, other, cotangent) or _vanishes_scaled(other, one, cotangent)
    return False


def _vanishes_scaled(result: ir.Value | None, factor: ir.Value | None, cotangent: ir.Value) -> bool:
    known = constant_of(factor)
    finite = known is not None and bool(np.isfinite(known.astype(np.float64)).all())
    return finite and result is not None and _vanishes(result, cotangent)


def sum_to(cotangent: Expr, output: ir.Value, operand: Expr) -> Expr:
    """Undoes broadcasting: sums ``cotangent``, of the output's shape, to the shape of ``operand``.

    Axes are found statically where the shapes say enough and at run time otherwise; a symbolic dimension may be 1.
    """
    axes = _broadcast_axes(output.shape, operand.value.shape)
    if axes is not None:
        return _sum_static(cotangent, axes, operand)
    return _sum_dynamic(cotangent, operand)


def _broadcast_axes(whole: ir.Shape | None, part: ir.Shape | None) -> tuple[list[int], int] | None:
    """The axes to sum over and how many of them lead; None where only the run knows."""
    if whole is None or part is None:
        return None
    lead = whole.rank() - part.rank()
    axes = list(range(lead))
    for axis, dim in enumerate(part.dims):
        outer = whole[axis + lead]
        if isinstance(dim, int) and dim == 1:
            if not (isinstance(outer, int) and outer == 1):
                axes.append(axis + lead)
        elif not isinstance(dim, int) and not same_dim(dim, outer):
            return None
    return axes, lead


def _sum_static(cotangent: Expr, found: tuple[list[int], int], operand: Expr) -> Expr:
    axes, lead = found
    if not axes:
        return cotangent
    inner = any(axis >= lead for axis in axes)  # all in one sum: ONNX Runtime 1.32 takes several times as long for two
    total = wide(cotangent).sum(axes, keepdims=inner)
    if inner:
        total = total.squeeze(range(lead))
    return _shaped(total.cast(cotangent.dtype), operand)


def _sum_dynamic(cotangent: Expr, operand: Expr) -> Expr:
    shape, target = op.Shape(cotangent), operand.shape
    # The Size of a Shape would be the same number; ONNX Runtime 1.32 takes it for the elements of the tensor.
    missing = op.Sub(op.Shape(shape), op.Shape(target))
    ones = op.Expand(cotangent.builder.constant(np.asarray([1], dtype=np.int64)), missing)
    differs = op.Not(op.Equal(shape, concat([ones, target])))
    axes = op.Squeeze(op.NonZero(differs), [0])
    total = op.ReduceSum(wide(cotangent), axes, keepdims=1, noop_with_empty_axes=1)
    return _shaped(total.cast(cotangent.dtype).reshape(target), operand)


def wide(x: Expr) -> Expr:
    """``x`` in float32 where a long sum in its 16-bit type would lose digits, else ``x``."""
    if x.dtype not in _SIXTEEN_BIT:
        return x
    shape = x.value.shape
    small = shape is not None and shape.is_static() and np.prod(shape.numpy()) <= _EXACT_SUM
    return x if small else x.cast(ir.DataType.FLOAT)


def _shaped(x: Expr, like: Expr) -> Expr:
    if x.value.shape is None:
        x.value.shape = like.value.shape
    return x
