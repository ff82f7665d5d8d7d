"""Optimisers (ai.onnx.preview.training) as their specification writes them: for a primal that no runtime runs.

They are written out when a model is loaded, so they are differentiated like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.expr import Expr, op, where

Step = tuple[Expr, ...]


def adagrad(
    rate: Expr,
    count: Expr,
    x: Expr,
    gradient: Expr,
    squares: Expr,
    *,
    norm_coefficient: float = 0.0,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
) -> Step:
    """One step of Adagrad (Duchi et al. 2011): new x, new sum of squared gradients."""
    decayed = rate / (1 + count.cast(rate.dtype) * decay_factor) if decay_factor else rate
    regular = _regular(x, gradient, norm_coefficient)
    new = squares + regular * regular
    return x - decayed.cast(x.dtype) * regular / (op.Sqrt(new) + epsilon), new


def adam(
    rate: Expr,
    count: Expr,
    x: Expr,
    gradient: Expr,
    average: Expr,
    squares: Expr,
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    epsilon: float = 1e-6,
) -> Step:
    """One step of Adam (Kingma and Ba 2015): new x, new average of gradients and of their squares."""
    regular = _regular(x, gradient, norm_coefficient)
    new_average = average * alpha + regular * (1 - alpha)
    new_squares = squares * beta + regular * regular * (1 - beta)
    steps = count.cast(rate.dtype)
    unbiased = op.Sqrt(1 - op.Pow(_number(beta, rate), steps)) / (1 - op.Pow(_number(alpha, rate), steps))
    adjusted = where(op.Greater(count, 0), rate * unbiased, rate).cast(x.dtype)
    new = x - adjusted * new_average / (op.Sqrt(new_squares) + epsilon)
    return new * (1 - norm_coefficient_post) if norm_coefficient_post else new, new_average, new_squares


def momentum(
    rate: Expr,
    count: Expr,
    x: Expr,
    gradient: Expr,
    moving: Expr,
    *,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Step:
    """One step of gradient descent with momentum, standard or Nesterov's: new x, new momentum."""
    regular = _regular(x, gradient, norm_coefficient)
    scale = where(op.Greater(count, 0), _number(beta, x), _number(1.0, x))
    new = moving * alpha + scale * regular
    direction = regular + new * alpha if mode == "nesterov" else new
    return x - rate.cast(x.dtype) * direction, new


OPTIMISERS: dict[str, tuple[Callable[..., Step], int]] = {
    "Adagrad": (adagrad, 3),
    "Adam": (adam, 4),
    "Momentum": (momentum, 3),
}
"""The step of each optimiser, and how many tensors it has for each one that is optimised."""


def optimised(op_type: str, inputs: Sequence[Expr], attributes: dict[str, object]) -> list[Expr]:
    """The outputs of an optimiser's node: of all tensors the new values, then the rest in the same order."""
    step, groups = OPTIMISERS[op_type]
    rate, count, *tensors = inputs
    number = len(tensors) // groups
    steps = [step(rate, count, *tensors[index::number], **attributes) for index in range(number)]
    return [result for results in zip(*steps, strict=True) for result in results]


def _regular(x: Expr, gradient: Expr, coefficient: float) -> Expr:
    """The gradient with that of coefficient / 2 * |x|^2 added."""
    return x * coefficient + gradient if coefficient else gradient


def _number(number: float, like: Expr) -> Expr:
    return like.builder.constant(number, like.dtype)
