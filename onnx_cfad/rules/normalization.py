"""Normalisation within each sample: over its last axes, its channels or groups of them. 16-bit types in float32."""

from __future__ import annotations

from collections.abc import Callable

from onnx_cfad.adjoint.cotangents import sum_to
from onnx_cfad.adjoint.expr import Expr, op, zeros_like
from onnx_cfad.rules.outputs import each_of
from onnx_cfad.rules.reductions import nonzero_norm, per_element
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.standardize import Standardized, at_least_float, scale_to_one, standardize
from onnx_cfad.rules.windows import planes

Lazy = Callable[[], Expr]


@vjp("LayerNormalization")
def layer_normalization(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    x: Expr,
    scale: Expr,
    b: Expr | None = None,
    *,
    axis: int,
    epsilon: float,
) -> tuple[Lazy, Lazy, Lazy]:
    ys = each_of(y)
    y_ct, mean_ct, inverse_ct = (*each_of(ct), None, None)[:3]
    wide = at_least_float(zeros_like(ys[0]) if y_ct is None else y_ct)

    def by_x() -> Expr:
        z = standardize(x, _last_axes(x, axis), epsilon)
        per_inverse = None if inverse_ct is None else per_element(inverse_ct, ys[2], x).cast(z.xhat.dtype)
        total = z.through(wide * at_least_float(scale), per_inverse)
        if mean_ct is not None:
            total = total + per_element(mean_ct, ys[1], x).cast(total.dtype)
        return total.cast(x.dtype)

    def by_scale() -> Expr:
        z = standardize(x, _last_axes(x, axis), epsilon)
        return sum_to(wide * z.xhat, ys[0].value, scale).cast(scale.dtype)

    def by_b() -> Expr:
        assert b is not None
        return sum_to(wide, ys[0].value, b).cast(b.dtype)

    return by_x, by_scale, by_b


def _last_axes(x: Expr, axis: int) -> list[int]:
    """The axes from ``axis`` to the last one."""
    return list(range(axis, 0)) if axis < 0 else list(range(axis, x.rank))


@vjp("RMSNormalization")
def rms_normalization(ct: Expr, y: Expr, x: Expr, scale: Expr, *, axis: int, epsilon: float) -> tuple[Lazy, Lazy]:
    ct = at_least_float(ct)

    def normalized() -> Standardized:
        return scale_to_one(x, _last_axes(x, axis), epsilon)

    def by_x() -> Expr:
        return normalized().through_scale(ct * at_least_float(scale)).cast(x.dtype)

    return by_x, lambda: sum_to(ct * normalized().xhat, y.value, scale).cast(scale.dtype)


@vjp("InstanceNormalization")
def instance_normalization(
    ct: Expr, y: Expr, x: Expr, scale: Expr, b: Expr, *, epsilon: float
) -> tuple[Lazy, Lazy, Lazy]:
    axes = list(range(2, x.rank))
    others = [0, *axes]
    wide = at_least_float(ct)

    def by_x() -> Expr:
        along = at_least_float(scale).unsqueeze([axis - 1 for axis in axes])
        return standardize(x, axes, epsilon).through(wide * along).cast(x.dtype)

    def by_scale() -> Expr:
        return (wide * standardize(x, axes, epsilon).xhat).sum(others).cast(scale.dtype)

    return by_x, by_scale, lambda: wide.sum(others).cast(b.dtype)


@vjp("GroupNormalization")
def group_normalization(
    ct: Expr, y: Expr, x: Expr, scale: Expr, bias: Expr, *, epsilon: float, num_groups: int
) -> tuple[Lazy, Lazy, Lazy]:
    # Before opset 21 there is one scale for each group, since then one for each channel.
    scaled = [0, num_groups if ct.builder.opset < 21 else 0, -1]
    grouped = [0, num_groups, -1]
    wide = at_least_float(ct).reshape(scaled)

    def normalized() -> Standardized:
        return standardize(x.reshape(grouped), [2], epsilon)

    def by_x() -> Expr:
        along = at_least_float(scale).unsqueeze([1])
        return normalized().through((wide * along).reshape(grouped)).cast(x.dtype).reshape(x.shape)

    def by_scale() -> Expr:
        return (wide * normalized().xhat.reshape(op.Shape(wide))).sum([0, 2]).cast(scale.dtype)

    return by_x, by_scale, lambda: wide.sum([0, 2]).cast(bias.dtype)


@vjp("MeanVarianceNormalization")
def mean_variance_normalization(ct: Expr, y: Expr, x: Expr, *, axes: list[int]) -> Expr:
    # y = c / (s + 1e-9) with c = x - mean(x) and s = sqrt(mean(c^2)): 1e-9 is added to the deviation itself.
    axes = list(axes)
    wide, centred = at_least_float(ct), at_least_float(x)
    centred = centred - op.ReduceMean(centred, axes, keepdims=1)
    deviation = op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1))
    scale = deviation + 1e-9
    along = op.ReduceMean(wide * (centred / scale), axes, keepdims=1)
    spread = centred / nonzero_norm(deviation) * along
    return ((wide - op.ReduceMean(wide, axes, keepdims=1) - spread) / scale).cast(x.dtype)


@vjp("LpNormalization")
def lp_normalization(ct: Expr, y: Expr, x: Expr, *, axis: int, p: int) -> Expr:
    # The zero vector is mapped to itself, and its cotangent is 0.
    x_wide, wide = at_least_float(x), at_least_float(ct)
    y_wide = at_least_float(y)
    reduce = op.ReduceL1 if p == 1 else op.ReduceL2
    norm = nonzero_norm(reduce(x_wide, [axis], keepdims=1))
    slope = op.Sign(x_wide) if p == 1 else y_wide
    along = op.ReduceSum(wide * y_wide, [axis], keepdims=1)
    return ((wide - slope * along) / norm).cast(x.dtype)


@vjp("LRN")
def lrn(ct: Expr, y: Expr, x: Expr, *, alpha: float, beta: float, bias: float, size: int) -> Expr:
    """With s = bias + alpha / size * (sum of squares over the window): y = x / s^beta."""
    x_wide, wide = at_least_float(x), at_least_float(ct)
    before = (size - 1) // 2
    s = bias + alpha * _window_mean(x_wide * x_wide, x, size, before)
    scaled = wide * op.Pow(s, -beta)
    back = _window_mean(scaled * x_wide / s, x, size, size - 1 - before)
    return (scaled - (2 * alpha * beta) * x_wide * back).cast(x.dtype)


def _window_mean(terms: Expr, x: Expr, size: int, before: int) -> Expr:
    """The sum of ``terms``, by ``size``, over channels from ``before`` before each one to ``size`` channels on."""
    channels = op.Unsqueeze(planes(terms, x), [1])  # [N, 1, C, D]
    pads = [before, 0, size - 1 - before, 0]
    means = op.AveragePool(channels, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    return means.reshape(x.shape)
