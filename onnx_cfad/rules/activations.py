"""Activation functions, stable for arguments of any size. At a kink: the derivative PyTorch picks."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.rules.registry import nondifferentiable, vjp

nondifferentiable("Hardmax", reason="a choice of the largest element is piecewise constant")


@vjp("Relu", elementwise=True)
def relu(ct: Expr, y: Expr, x: Expr) -> Expr:
    return where(y.cast(ir.DataType.BOOL), ct, 0)  # y is not negative, and NaN lets the cotangent pass


@vjp("LeakyRelu", elementwise=True)
def leaky_relu(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    return where(x > 0, ct, ct * alpha)


@vjp("PRelu", broadcasts=True)
def p_relu(ct: Expr, y: Expr, x: Expr, slope: Expr) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    return lambda: where(x > 0, ct, ct * slope), lambda: where(x > 0, 0, ct * x)


@vjp("ThresholdedRelu", elementwise=True)
def thresholded_relu(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    return where(x > alpha, ct, 0)


@vjp("Elu", elementwise=True)
def elu(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    return where(x > 0, ct, ct * (alpha * op.Exp(_negative(x))))


@vjp("Celu", elementwise=True)
def celu(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    return where(x > 0, ct, ct * op.Exp(_negative(x) / alpha))


@vjp("Selu", elementwise=True)
def selu(ct: Expr, y: Expr, x: Expr, *, alpha: float, gamma: float) -> Expr:
    return where(x > 0, ct * gamma, ct * (alpha * gamma * op.Exp(_negative(x))))


def _negative(x: Expr) -> Expr:
    """``x`` where it is negative, else 0: an exponent that cannot overflow where the exponential is not used."""
    return where(x > 0, 0, x)


@vjp("Sigmoid", elementwise=True)
def sigmoid(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * (y * (1 - y))


@vjp("HardSigmoid", elementwise=True)
def hard_sigmoid(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    return where(op.And(y > 0, y < 1), ct * alpha, 0)


@vjp("HardSwish", elementwise=True)
def hard_swish(ct: Expr, y: Expr, x: Expr) -> Expr:
    return where(x >= 3, ct, where(x <= -3, 0, ct * (x * (1 / 3) + 0.5)))


@vjp("Softplus", elementwise=True)
def softplus(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * op.Sigmoid(x)


@vjp("Softsign", elementwise=True)
def softsign(ct: Expr, y: Expr, x: Expr) -> Expr:
    scale = 1 + op.Abs(x)
    return ct / scale / scale  # its square may overflow


@vjp("Shrink", elementwise=True)
def shrink(ct: Expr, y: Expr, x: Expr, *, lambd: float) -> Expr:
    return where(op.Or(x > lambd, x < -lambd), ct, 0)


@vjp("Swish", elementwise=True)
def swish(ct: Expr, y: Expr, x: Expr, *, alpha: float) -> Expr:
    s = op.Sigmoid(x * alpha)
    return ct * (s + alpha * y * (1 - s))


@vjp("SwiGLU", elementwise=True)
def swi_glu(ct: Expr, y: Expr, a: Expr, b: Expr, *, alpha: float) -> tuple[Callable[[], Expr], Callable[[], Expr]]:
    s = op.Sigmoid(a * alpha)
    swished = a * s
    return lambda: ct * b * (s + alpha * swished * (1 - s)), lambda: ct * swished


@vjp("Mish", elementwise=True)
def mish(ct: Expr, y: Expr, x: Expr) -> Expr:
    t = op.Tanh(op.Softplus(x))
    return ct * (t + x * (1 - t * t) * op.Sigmoid(x))


@vjp("Gelu", elementwise=True)
def gelu(ct: Expr, y: Expr, x: Expr, *, approximate: str) -> Expr:
    return ct * (gelu_tanh_slope(x) if approximate == "tanh" else gelu_slope(x))


def gelu_slope(x: Expr) -> Expr:
    """cdf(x) + x pdf(x) of the normal distribution."""
    cdf = 0.5 + 0.5 * op.Erf(x * math.sqrt(0.5))
    return cdf + x * (op.Exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi)))


def gelu_tanh_slope(x: Expr) -> Expr:
    """The derivative of x (1 + t) / 2 with t = tanh(c (x + 0.044715 x^3)); t is 1 or -1 from |x| = 10 on."""
    c = math.sqrt(2 / math.pi)
    z = op.Clip(x, -10.0, 10.0)
    square = z * z
    t = op.Tanh(c * z * (1 + 0.044715 * square))
    return 0.5 + 0.5 * t + (0.5 * c) * z * (1 - t * t) * (1 + (3 * 0.044715) * square)


@vjp("Softmax")
def softmax(ct: Expr, y: Expr, x: Expr, *, axis: int) -> Expr:
    return y * (ct - sum_along(ct * y, axis))


@vjp("LogSoftmax")
def log_softmax(ct: Expr, y: Expr, x: Expr, *, axis: int) -> Expr:
    return ct - op.Exp(y) * sum_along(ct, axis)


def sum_along(x: Expr, axis: int) -> Expr:
    """The sum along one axis, which stays with length 1."""
    return wide(x).sum([axis], keepdims=True).cast(x.dtype)
