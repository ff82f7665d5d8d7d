"""Elementwise operators: y = f(x), or y = f(a, b) with broadcasting. At a kink: the derivative PyTorch picks."""

from __future__ import annotations

# ruff: noqa: ANN001, ANN201, ANN202, D103 - a rule is the formula
from onnx_cfad.adjoint.expr import op, where
from onnx_cfad.rules.registry import nondifferentiable, vjp


@vjp("Identity")
def identity(ct, y, x):
    return ct


@vjp("Tanh", elementwise=True)
def tanh(ct, y, x):
    return ct * (1 - y * y)


@vjp("Sin", elementwise=True)
def sin(ct, y, x):
    return ct * op.Cos(x)


@vjp("Add", broadcasts=True)
def add(ct, y, a, b):
    return ct, ct


@vjp("Sub", broadcasts=True)
def sub(ct, y, a, b):
    return ct, lambda: -ct


@vjp("Mul", broadcasts=True)
def mul(ct, y, a, b):
    return lambda: ct * b, lambda: ct * a


@vjp("Where", broadcasts=True)
def where_(ct, y, condition, a, b):
    return None, lambda: where(condition, ct, 0), lambda: where(condition, 0, ct)


nondifferentiable("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual", reason="a comparison is piecewise constant")
