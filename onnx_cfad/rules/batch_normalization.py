"""BatchNormalization with given statistics, or in training mode with those of the batch."""

from __future__ import annotations

from collections.abc import Callable

from onnx_cfad.adjoint.expr import Expr, op, zeros_like
from onnx_cfad.rules.outputs import each_of
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.standardize import Standardized, at_least_float, standardize

Result = Callable[[], Expr] | Expr | None


@vjp("BatchNormalization")
def batch_normalization(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    scale: Expr,
    B: Expr,
    input_mean: Expr,
    input_var: Expr,
    *,
    epsilon: float,
    momentum: float,
    training_mode: int,
) -> tuple[Result, ...]:
    cts = each_of(ct)
    y_ct = at_least_float(zeros_like(x) if cts[0] is None else cts[0])
    others = [axis for axis in range(x.rank) if axis != 1]

    def statistics() -> Standardized:
        if training_mode:
            return standardize(x, others, epsilon)
        return _with_statistics(x, input_mean, input_var, epsilon)

    def by_scale() -> Expr:
        return (y_ct * statistics().xhat).sum(others).cast(scale.dtype)

    def by_b() -> Expr:
        return y_ct.sum(others).cast(B.dtype)

    spread_ct = y_ct * _along_channels(scale, x)
    if not training_mode:
        by_x, *rest = _by_given(spread_ct, statistics, x, input_mean, input_var)
        return by_x, by_scale, by_b, *rest
    running = (*cts[1:], None, None)[:2]
    carried = [None if each is None else each * momentum for each in running]
    return lambda: _by_batch(spread_ct, statistics(), x, running, 1 - momentum), by_scale, by_b, *carried


def _along_channels(values: Expr, x: Expr) -> Expr:
    """[C] as [C, 1, ..., 1], which broadcasts to ``x`` [N, C, ...]."""
    return at_least_float(values).unsqueeze(list(range(1, x.rank - 1)))


def _with_statistics(x: Expr, mean: Expr, var: Expr, epsilon: float) -> Standardized:
    """``x`` standardised with the given mean and variance of each channel."""
    inverse = _along_channels(op.Reciprocal(op.Sqrt(at_least_float(var) + epsilon)), x)
    axes = [axis for axis in range(x.rank) if axis != 1]
    return Standardized((at_least_float(x) - _along_channels(mean, x)) * inverse, inverse, axes)


def _by_given(
    ct: Expr, statistics: Callable[[], Standardized], x: Expr, mean: Expr, var: Expr
) -> tuple[Callable[[], Expr], ...]:
    """The cotangents of x and of the given mean and variance, from that of xhat."""

    def by_mean() -> Expr:
        z = statistics()
        return -(ct * z.inverse).sum(z.axes).cast(mean.dtype)

    def by_var() -> Expr:
        z = statistics()
        return (ct * z.xhat * (-0.5 * z.inverse * z.inverse)).sum(z.axes).cast(var.dtype)

    return lambda: (ct * statistics().inverse).cast(x.dtype), by_mean, by_var


def _by_batch(ct: Expr, statistics: Standardized, x: Expr, running: tuple[Expr | None, ...], share: float) -> Expr:
    """The cotangent of x from that of xhat, and from the ``share`` that the batch has in the running statistics."""
    total = statistics.through(ct)
    mean_ct, var_ct = (None if each is None else each.cast(total.dtype) * share for each in running)
    count = x.size.cast(total.dtype) / x.dim(1).cast(total.dtype)
    if mean_ct is not None:
        total = total + _along_channels(mean_ct / count, x)
    if var_ct is not None:
        centred = statistics.xhat / statistics.inverse
        total = total + centred * _along_channels(2 * var_ct / count, x)
    return total.cast(x.dtype)
