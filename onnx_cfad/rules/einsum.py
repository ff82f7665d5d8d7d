"""Einsum: the cotangent takes the place of an operand in an Einsum of its own.

Letters are written anew, in lower case and with an ellipsis spelt out: ONNX Runtime 1.32 refuses an implicit output
with upper case, and ellipses of different width. A letter that only one operand has was summed alone: its cotangent is
repeated along it. A letter twice in one operand is a diagonal: the cotangent goes onto it. The specification has axes
of one letter equally long; as in ONNX Runtime, NumPy and PyTorch one of length 1 may also be stretched.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import string
from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.registry import jvp, vjp
from onnx_cfad.rules.scatter_add import ascending

Dim = int | ir.SymbolicDim


@dataclasses.dataclass(frozen=True)
class _Equation:
    """The letters of every operand's axes, and of the output's."""

    operands: tuple[str, ...]
    output: str

    def without(self, index: int) -> list[str]:
        """The letters of the other operands."""
        return [letters for k, letters in enumerate(self.operands) if k != index]


@vjp("Einsum")
def einsum(ct: Expr, y: Expr, *xs: Expr, equation: str) -> tuple[Callable[[], Expr], ...]:
    letters = _parsed(equation, xs)
    return tuple((lambda index=index: _by_operand(ct, xs, letters, index)) for index in range(len(xs)))


@jvp("Einsum")
def einsum_tangent(tangents: tuple[Expr | None, ...], y: Expr, *xs: Expr, equation: str) -> Expr:
    left, arrow, output = equation.partition("->")
    own = left.split(",")
    order = list(range(len(xs)))
    if (
        "..." not in equation
    ):  # onnx takes the length of a letter from the first operand that has it: stretched ones last
        order.sort(key=lambda k: _has_stretched_axis(xs, _parsed(equation, xs), k))
    terms = f"{','.join(own[k] for k in order)}{arrow}{output}"
    parts = [
        op.Einsum(*((t if k == index else xs[k]) for k in order), equation=terms)
        for index, t in enumerate(tangents)
        if t is not None
    ]
    return functools.reduce(operator.add, parts)


def _has_stretched_axis(xs: tuple[Expr, ...], equation: _Equation, index: int) -> bool:
    lengths = (_dims(c, xs, equation, index) for c in equation.operands[index])
    return any(mine == 1 and any(d not in (None, 1) for d in others) for mine, others in lengths)


def _parsed(equation: str, xs: tuple[Expr, ...]) -> _Equation:
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    widths = [x.rank - len(t) + 3 if "..." in t else 0 for t, x in zip(terms, xs, strict=True)]
    fresh = iter(c for c in string.ascii_letters if c not in equation)
    spelt = "".join(next(fresh) for _ in range(max(widths)))
    if not arrow:
        named = left.replace("...", "").replace(",", "")
        output = "..." + "".join(sorted(c for c in named if named.count(c) == 1))
    terms = [t.replace("...", spelt[len(spelt) - w :]) for t, w in zip(terms, widths, strict=True)]
    return _renamed(_Equation(tuple(terms), output.replace("...", spelt)))


def _renamed(equation: _Equation) -> _Equation:
    """The same equation in lower-case letters, in the order of their first use."""
    used = list(dict.fromkeys("".join(equation.operands)))
    if len(used) > len(string.ascii_lowercase):
        raise UnsupportedOp(
            "", f"an Einsum of {len(used)} different axes, expected at most 26", "Split it into several Einsums."
        )
    table = str.maketrans("".join(used), string.ascii_lowercase[: len(used)])
    return _Equation(tuple(t.translate(table) for t in equation.operands), equation.output.translate(table))


def _by_operand(ct: Expr, xs: tuple[Expr, ...], equation: _Equation, index: int) -> Expr:
    x, own = xs[index], equation.operands[index]
    others = equation.without(index)
    elsewhere = set(equation.output).union(*others)
    shared = "".join(c for c in dict.fromkeys(own) if c in elsewhere)
    rest = [each for k, each in enumerate(xs) if k != index]
    result = _contracted(ct, equation.output, rest, others, shared)
    result = _summed(result, xs, equation, index, shared)
    if shared == own and not _is_stretched(xs, equation, index):
        return result
    inserted = [axis for axis, c in enumerate(own) if c not in shared or axis != own.index(c)]
    return _spread(result.unsqueeze(inserted), x, own)


def _contracted(ct: Expr, output: str, others: list[Expr], terms: list[str], target: str) -> Expr:
    """The Einsum of the cotangent and the other operands, the simplest operator that gives it."""
    if others:
        # The cotangent first: onnx takes the length of a letter from the first operand that has it, also where it is 1.
        return op.Einsum(ct, *others, equation=f"{','.join([output, *terms])}->{target}")
    return ct if output == target else op.Transpose(ct, perm=[output.index(c) for c in target])


def _summed(result: Expr, xs: tuple[Expr, ...], equation: _Equation, index: int, letters: str) -> Expr:
    """``result`` summed to length 1 along the letters that the operand has with length 1 and another one longer."""
    x, own = xs[index], equation.operands[index]
    lengths = [_dims(c, xs, equation, index) for c in letters]
    if all(_is_same(mine, others) for mine, others in lengths):
        axes = [k for k, (mine, others) in enumerate(lengths) if mine == 1 and any(d != 1 for d in others)]
        return wide(result).sum(axes, keepdims=True).cast(x.dtype) if axes else result
    target = op.Gather(x.shape, [own.index(c) for c in letters], axis=0)
    axes = op.Squeeze(op.NonZero(op.Not(op.Equal(op.Shape(result), target))), [0])
    return op.ReduceSum(wide(result), axes, keepdims=1, noop_with_empty_axes=1).cast(x.dtype)


def _dims(letter: str, xs: tuple[Expr, ...], equation: _Equation, index: int) -> tuple[Dim | None, list[Dim | None]]:
    """What is known of the length of ``letter`` in the operand, and in the others."""
    found: list[list[Dim | None]] = []
    for k in (index, *(k for k in range(len(xs)) if k != index)):
        shape = xs[k].value.shape
        places = [axis for axis, c in enumerate(equation.operands[k]) if c == letter]
        dims = [None if shape is None else shape.dims[axis] for axis in places]
        found.append([d if isinstance(d, int) or (d is not None and d.value is not None) else None for d in dims])
    return found[0][0], [d for dims in found[1:] for d in dims]


def _is_stretched(xs: tuple[Expr, ...], equation: _Equation, index: int) -> bool:
    """Whether the operand may be longer than all others along a letter that they have and the output lacks."""
    summed = [c for c in equation.operands[index] if c not in equation.output]
    lengths = [_dims(c, xs, equation, index) for c in summed]
    return any(others and mine != 1 and (mine is None or mine not in others) for mine, others in lengths)


def _is_same(mine: Dim | None, others: list[Dim | None]) -> bool:
    """Whether it is known if the operand is stretched along a letter: its length is a number, or the only one."""
    if isinstance(mine, int) or not others:
        return True
    return mine is not None and all(d in (mine, 1) for d in others)


def _spread(result: Expr, x: Expr, own: str) -> Expr:
    """``result`` (length 1 along letters it lacks) repeated to the shape of ``x``, and 0 beside a diagonal."""
    on_diagonal: Expr | None = None
    for axis, c in enumerate(own):
        first = own.index(c)
        if first != axis:
            same = op.Equal(_numbers(x, first, len(own)), _numbers(x, axis, len(own)))
            on_diagonal = same if on_diagonal is None else op.And(on_diagonal, same)
    if on_diagonal is not None:
        result = where(on_diagonal, result, 0)
    return result.expand(x.shape)


def _numbers(x: Expr, axis: int, rank: int) -> Expr:
    """The indices along an axis of ``x``, as a tensor that broadcasts to it."""
    return ascending(x.dim(axis).squeeze([0])).unsqueeze([a for a in range(rank) if a != axis])
