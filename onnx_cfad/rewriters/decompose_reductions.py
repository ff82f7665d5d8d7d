"""Reductions over one axis each: TVM 0.19 reads the first of several axes alone, and takes a scalar for a row."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.rewriters.decompose_operators import Decomposition, input_of, known, optional_input, rank_of
from onnx_cfad.rewriters.recorder import Recorder

_BEFORE = {"ReduceL1": "Abs", "ReduceL2": "square", "ReduceSumSquare": "square", "ReduceLogSum": ""}
_AFTER = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}


def _decompose(op: Recorder, node: ir.Node) -> ir.Value | None:
    x, rank = input_of(node, 0), rank_of(input_of(node, 0))
    axes = reduced_axes(node)
    if rank is None or axes is None:
        return None
    keep = bool(node.attributes.get_int("keepdims", 1))
    if node.op_type == "ReduceLogSumExp":
        top = _chain(op, "ReduceMax", x, axes, rank, keep=True)
        total = _chain(op, "ReduceSum", op.Exp(op.Sub(x, top)), axes, rank, keep=keep)
        return op.Add(op.Log(total), top if keep or not axes else op.Squeeze(top, op.ints(*axes)))
    before = _BEFORE.get(node.op_type)
    if before is None:
        return None if len(axes) == 1 and rank > 0 else _chain(op, node.op_type, x, axes, rank, keep=keep)
    inner = x if not before else op.Mul(x, x) if before == "square" else op.Abs(x)
    total = _chain(op, "ReduceSum", inner, axes, rank, keep=keep)
    after = _AFTER.get(node.op_type)
    return total if after is None else getattr(op, after)(total)


def reduced_axes(node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a reduction, ascending; None where the run decides, or the rank is not known."""
    rank, given = rank_of(input_of(node, 0)), optional_input(node, 1)
    numbers: Sequence[float] | None = known(given) if given is not None else node.attributes.get_ints("axes", ())
    if rank is None or numbers is None:
        return None
    if not numbers and node.attributes.get_int("noop_with_empty_axes", 0):
        return ()
    return tuple(sorted({int(n) % rank for n in numbers})) if numbers and rank else tuple(range(rank))


def _chain(op: Recorder, op_type: str, x: ir.Value, axes: Sequence[int], rank: int, *, keep: bool) -> ir.Value:
    """Reduces axis by axis; the last axes first, so that those before them keep their numbers."""
    if not axes:
        return x
    if rank == len(axes) and not keep:  # all of a vector at once
        flat = op.Reshape(x, op.ints(-1)) if rank > 1 else x
        return getattr(op, op_type)(flat, op.ints(0), keepdims=0)
    for axis in reversed(axes):
        x = getattr(op, op_type)(x, op.ints(axis), keepdims=int(keep))
    return x


_NAMES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

REDUCTIONS: dict[str, Decomposition] = {f"Reduce{name}": _decompose for name in _NAMES}
