"""Gelu in its fused forms, erf and tanh, with and without a bias."""

from __future__ import annotations

from collections.abc import Callable

from onnx_cfad.adjoint.cotangents import sum_to
from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.rules.activations import gelu_slope, gelu_tanh_slope
from onnx_cfad.rules.registry import vjp

DOMAIN = "com.microsoft"


@vjp("Gelu", domain=DOMAIN, elementwise=True)
def gelu(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * gelu_slope(x)


@vjp("BiasGelu", domain=DOMAIN, broadcasts=True)
def bias_gelu(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    slope = ct * gelu_slope(a + b)
    return slope, slope


@vjp("FastGelu", domain=DOMAIN)
def fast_gelu(ct: Expr, y: Expr, x: Expr, bias: Expr | None = None) -> tuple[Expr, Callable[[], Expr]]:
    slope = ct * gelu_tanh_slope(x if bias is None else x + bias)

    def by_bias() -> Expr:
        assert bias is not None
        return sum_to(slope, y.value, bias)

    return slope, by_bias


@vjp("QuickGelu", domain=DOMAIN, elementwise=True)
def quick_gelu(ct: Expr, y: Expr, x: Expr, *, alpha: float | None) -> Expr:
    alpha = 1.702 if alpha is None else alpha
    s = op.Sigmoid(x * alpha)
    return ct * (s + alpha * y * (1 - s))
