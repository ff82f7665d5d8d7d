"""Zero cotangents and tangents, for tensors and sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import SMALL, Builder, Expr, full, op, zeros_like

_SMALL_BYTES = 1 << 20  # of zeros that may be kept outside of a branch


def zero_cotangent(primal: Expr) -> Expr:
    """The zero cotangent (or tangent) of ``primal``: of the same shape, or a sequence of zeros of the same shapes."""
    if primal.is_tensor:
        return zeros_like(primal)
    producer = primal.value.producer()
    if producer is not None and producer.op_type == "SequenceEmpty":
        return primal
    from onnx_cfad.rules.sequences import zeros_like_sequence  # noqa: PLC0415 - rules are built on expressions

    return zeros_like_sequence(primal)


def zero_cotangents(primals: Sequence[Expr], outer: Builder) -> list[Expr]:
    """The zero cotangent of each of ``primals`` in a branch, whose results have to be values of their own.

    Those that differ in their first axis alone are the parts of one tensor of zeros in ``outer``, which branches share:
    one node in place of one for each. The inactive branch of an If with many weights returns little else.
    """
    found: dict[int, Expr] = {}
    alike: dict[tuple[ir.DataType, tuple[int, ...]], dict[int, int]] = {}  # which primals, each with its rows
    for k, primal in enumerate(primals):
        dims = _dims(primal)
        if dims is None:
            found[k] = zero_cotangent(primal)
        else:
            alike.setdefault((primal.dtype, dims[1:]), {})[k] = dims[0]
    for (dtype, row), members in alike.items():
        whole = [sum(members.values()), *row]
        if math.prod(whole) * dtype.itemsize > _SMALL_BYTES:
            found |= {k: zero_cotangent(primals[k]) for k in members}
            continue
        zeros = primals[0].builder.expr(full(outer.constant(whole), 0, dtype, outer).value)
        for k, part in zip(members, _parts(zeros, list(members.values())), strict=True):
            part.value.shape = primals[k].value.shape
            found[k] = part
    return [found[k] for k in range(len(primals))]


def _parts(zeros: Expr, lengths: Sequence[int]) -> Sequence[Expr]:
    """The zeros cut along their first axis; a single part is the whole, which a branch returns a copy of."""
    if len(lengths) == 1:
        return [zeros]
    if len(set(lengths)) == 1:
        return op.Split(zeros, axis=0, num_outputs=len(lengths), outputs=len(lengths))
    return op.Split(zeros, list(lengths), axis=0, outputs=len(lengths))


def _dims(primal: Expr) -> tuple[int, ...] | None:
    """The dimensions of a tensor that is too large for a constant of the branch; None where they are not known."""
    shape = primal.value.shape
    if not primal.is_tensor or shape is None:
        return None
    dims = tuple(d for d in shape.dims if isinstance(d, int))
    return dims if len(dims) == shape.rank() and math.prod(dims) > SMALL else None
