"""When an implicit derivative holds, and the last step that makes it differentiable again; for both modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.graph.fixed_point import FixedPoint
from onnx_cfad.graph.stand_in import StandIn
from onnx_cfad.graph.stopping import is_tight
from onnx_cfad.solvers.iteration import iterate
from onnx_cfad.solvers.system import Solution, squared, total

_POLISH = "implicit(fallback=none)"


def relative_move(builder: Builder, ends: Sequence[ir.Value], exits: Sequence[ir.Value]) -> Expr:
    """How far one more iteration, which gives ``exits``, moves ``ends``, relative to them (2-norms, scalar)."""
    dtype = ends[0].dtype
    dtype = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    before = [builder.expr(end).cast(dtype) for end in ends]
    moves = [builder.expr(after).cast(dtype) - end for after, end in zip(exits, before, strict=True)]
    whole = op.Sqrt(squared(before))
    return op.Sqrt(squared(moves)) / op.Max(whole, float(np.finfo(dtype.numpy()).tiny))


def felt_move(builder: Builder, felt: Sequence[Expr], ends: Sequence[ir.Value], exits: Sequence[ir.Value]) -> Expr:
    """The same as the cotangents ``felt`` of ``ends`` weigh it: sum |ct move| / sum |ct end| (scalar)."""
    dtype = ends[0].dtype
    dtype = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    weights, before = ([v.cast(dtype) for v in values] for values in (felt, [builder.expr(end) for end in ends]))
    moves = [builder.expr(after).cast(dtype) - end for after, end in zip(exits, before, strict=True)]
    moved, whole = (
        total([op.ReduceL1(w * x, keepdims=0) for w, x in zip(weights, xs, strict=True)]) for xs in (moves, before)
    )
    return moved / op.Max(whole, float(np.finfo(dtype.numpy()).tiny))


def trips_of(stand_in: StandIn, loop: ir.Node) -> ir.Value:
    """How often the loop ran: the carry before the one that says whether it met its tolerance."""
    maker = stand_in.predicate.producer()
    assert maker is not None
    if maker is loop:
        return maker.outputs[list(maker.outputs).index(stand_in.predicate) - 1]
    counter = maker.inputs[0]
    assert counter is not None
    return counter


def has_to_rest(point: FixedPoint, fallback: str) -> bool:
    """Whether the run also looks at how far one more iteration moves: where no tolerance says that the loop converged.

    A tight one may be met by carries that are small themselves while they, or others that follow from them, still move
    by a part of their size, as where u goes to 0 and v = b / u is carried too. The iterations that ran are a gradient
    in any case, so that this is asked where they are the fallback.
    """
    return point.condition is None or (fallback == "checkpointed" and is_tight(point.condition))


def converged(builder: Builder, stand_in: StandIn, residual: Expr | None) -> Expr:
    """Whether the loop met its tolerance, or ran where it has none, and ``residual`` is small (bool scalar)."""
    predicate = builder.expr(stand_in.predicate)
    if residual is None:
        return predicate
    return op.And(predicate, op.LessOrEqual(residual, float(np.sqrt(np.finfo(residual.dtype.numpy()).eps))))


def holds(solution: Solution, met: Expr | None, rhs: Sequence[Expr]) -> Expr:
    """Whether a solution is one and stands for the loop (bool scalar); only the former where ``met`` is None.

    A map that keeps something has the eigenvalue 1. Rounding makes the system regular then, and its solution huge.
    """
    if met is None:
        return solution.solved
    dtype = ir.DataType.DOUBLE if any(x.dtype == ir.DataType.DOUBLE for x in rhs) else ir.DataType.FLOAT
    size, source = (op.Sqrt(squared([x.cast(dtype) for x in values])) for values in (solution.values, rhs))
    small = float(np.sqrt(np.finfo(size.dtype.numpy()).eps))
    result = op.And(op.And(met, solution.solved), op.LessOrEqual(size * small, source))
    return result if solution.contraction is None else op.And(result, op.Less(solution.contraction, 1))


def polished(
    builder: Builder,
    us: Sequence[Expr],
    rhs: Sequence[Expr],
    apply: Callable[[Builder, list[Expr]], list[Expr]],
    *,
    name: str,
) -> list[Expr]:
    """One more step u = b + A u, in a Loop whose derivative is the implicit one.

    Args:
        builder: Records it.
        us: The solution so far.
        rhs: b.
        apply: Records A u with a builder.
        name: Of the step.
    """

    def step(inner: Builder, states: list[Expr]) -> tuple[Expr, list[Expr]]:
        moved = apply(inner, states)
        return inner.constant(True), [inner.expr(b.value) + v for b, v in zip(rhs, moved, strict=True)]

    return iterate(1, builder.constant(True), step, us, name=name, adjoint=_POLISH)
