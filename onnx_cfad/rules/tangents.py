"""JVP rules, where they emit less than the transposed VJP rule."""

from __future__ import annotations

from typing import Any

from onnx_cfad.adjoint.expr import Expr, op, zeros_like
from onnx_cfad.rules.activations import sum_along
from onnx_cfad.rules.registry import jvp

Tangents = tuple[Expr | None, ...]


@jvp("Softmax")
def softmax(tangents: Tangents, y: Expr, x: Expr, *, axis: int) -> Expr:
    (t,) = tangents
    assert t is not None
    return y * (t - sum_along(y * t, axis))


@jvp("LogSoftmax")
def log_softmax(tangents: Tangents, y: Expr, x: Expr, *, axis: int) -> Expr:
    (t,) = tangents
    assert t is not None
    return t - sum_along(op.Exp(y) * t, axis)


@jvp("ScatterElements")
def scatter_elements(
    tangents: Tangents, y: Expr, data: Expr, indices: Expr, updates: Expr, *, axis: int, reduction: str
) -> Any:
    if reduction not in ("none", "add"):
        return NotImplemented
    of_data, _, of_updates = _together(tangents, (data, indices, updates))
    return op.ScatterElements(of_data, indices, of_updates, axis=axis, reduction=reduction)


@jvp("ScatterND")
def scatter_nd(tangents: Tangents, y: Expr, data: Expr, indices: Expr, updates: Expr, *, reduction: str) -> Any:
    if reduction not in ("none", "add"):
        return NotImplemented
    of_data, _, of_updates = _together(tangents, (data, indices, updates))
    return op.ScatterND(of_data, indices, of_updates, reduction=reduction)


def _together(tangents: Tangents, xs: tuple[Expr, ...]) -> list[Expr]:
    """The tangents of inputs that an operator is linear in together: zeros where there is none."""
    return [zeros_like(x) if t is None else t for t, x in zip(tangents, xs, strict=True)]
