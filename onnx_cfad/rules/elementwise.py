"""Elementwise operators: y = f(x), or y = f(a, b, ...) with broadcasting. At a kink: the derivative PyTorch picks.

Max, Min: inputs that tie share the cotangent evenly. Clip: it passes on the closed interval, as in torch.clamp.
Sqrt, Pow: a root of a sum of powers is a norm, whose derivative at zero is 0, as torch.norm's; a root alone has a pole.
Pow: 0 by the exponent where the base is 0 and the exponent is not negative; NaN by the exponent of a negative base.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_cfad.adjoint.cotangents import sum_to
from onnx_cfad.adjoint.expr import Expr, op, where, zeros_like
from onnx_cfad.graph.norms import is_norm
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.rules.reductions import nonzero_norm
from onnx_cfad.rules.registry import nondifferentiable, vjp

Lazy = Callable[[], Expr]

nondifferentiable(
    "Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual", reason="a comparison is piecewise constant"
)
nondifferentiable(
    "Round", "Floor", "Ceil", "Sign", reason="piecewise constant: the derivative is 0 wherever there is one"
)
nondifferentiable("IsNaN", "IsInf", reason="a test is piecewise constant")
nondifferentiable("And", "Or", "Not", "Xor", reason="logic on booleans")
nondifferentiable(
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", reason="integers carry no derivative"
)


@vjp("Identity")
def identity(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct


@vjp("Neg", elementwise=True)
def neg(ct: Expr, y: Expr, x: Expr) -> Expr:
    return -ct


@vjp("Abs", elementwise=True)
def abs_(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * op.Sign(x)


@vjp("Reciprocal", elementwise=True)
def reciprocal(ct: Expr, y: Expr, x: Expr) -> Expr:
    return -ct * (y * y)


@vjp("Sqrt", elementwise=True)
def sqrt(ct: Expr, y: Expr, x: Expr) -> Expr:
    y = nonzero_norm(y) if is_norm(y.value.producer()) else y
    return ct / (y + y)


@vjp("Exp", elementwise=True)
def exp(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * y


@vjp("Log", elementwise=True)
def log(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / x


@vjp("Erf", elementwise=True)
def erf(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * (2 / math.sqrt(math.pi) * op.Exp(-(x * x)))


@vjp("Sin", elementwise=True)
def sin(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * op.Cos(x)


@vjp("Cos", elementwise=True)
def cos(ct: Expr, y: Expr, x: Expr) -> Expr:
    return -ct * op.Sin(x)


@vjp("Tan", elementwise=True)
def tan(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * (1 + y * y)


@vjp("Sinh", elementwise=True)
def sinh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * op.Cosh(x)


@vjp("Cosh", elementwise=True)
def cosh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * op.Sinh(x)


@vjp("Tanh", elementwise=True)
def tanh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct * (1 - y * y)


@vjp("Asin", elementwise=True)
def asin(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / op.Sqrt((1 - x) * (1 + x))  # 1 - x * x would cancel near 1


@vjp("Acos", elementwise=True)
def acos(ct: Expr, y: Expr, x: Expr) -> Expr:
    return -ct / op.Sqrt((1 - x) * (1 + x))


@vjp("Atan", elementwise=True)
def atan(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / (1 + x * x)


@vjp("Asinh", elementwise=True)
def asinh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / op.Cosh(y)  # sqrt(1 + x * x), which would overflow


@vjp("Acosh", elementwise=True)
def acosh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / op.Sinh(y)  # sqrt(x * x - 1)


@vjp("Atanh", elementwise=True)
def atanh(ct: Expr, y: Expr, x: Expr) -> Expr:
    return ct / ((1 - x) * (1 + x))


@vjp("Add", broadcasts=True)
def add(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    return ct, ct


@vjp("Sub", broadcasts=True)
def sub(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Expr, Lazy]:
    return ct, lambda: -ct


@vjp("Mul", broadcasts=True)
def mul(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Lazy, Lazy]:
    return lambda: ct * b, lambda: ct * a


@vjp("Div", broadcasts=True)
def div(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Lazy, Lazy]:
    return lambda: ct / b, lambda: -(ct / b) * y


@vjp("Mod", broadcasts=True)
def mod(ct: Expr, y: Expr, a: Expr, b: Expr) -> tuple[Expr, Lazy]:
    return ct, lambda: ct * op.Round((y - a) / b)  # a = n * b + y with an integer n, rounded either way


@vjp("Pow", broadcasts=True)
def pow_(ct: Expr, y: Expr, base: Expr, exponent: Expr) -> tuple[Lazy, Lazy]:
    return lambda: _by_base(ct, y, base, exponent), lambda: _by_exponent(ct, y, base, exponent)


def _by_base(ct: Expr, y: Expr, base: Expr, exponent: Expr) -> Expr:
    """The product n * x^(n-1), and 0 for n = 0, also at x = 0."""
    known = constant_of(exponent.value)
    if known is None or known.size != 1:
        n = exponent.cast(base.dtype)
        return ct * where(op.Equal(n, 0), 0, n * op.Pow(base, n - 1))
    number = float(known.reshape(-1)[0])
    if number == 0:
        return zeros_like(y)
    if number == 1:
        return ct
    if number == 2:
        return ct * (base + base)
    base = nonzero_norm(base) if is_norm(y.value.producer()) else base
    return ct * (number * op.Pow(base, number - 1))


def _by_exponent(ct: Expr, y: Expr, base: Expr, exponent: Expr) -> Expr:
    """x^n * log(x), and 0 at x = 0 for n >= 0."""
    n = exponent.cast(base.dtype)
    vanishes = op.And(op.Equal(base, 0), n >= 0)
    return (ct * where(vanishes, 0, y * op.Log(base))).cast(exponent.dtype)


@vjp("Where", broadcasts=True)
def where_(ct: Expr, y: Expr, condition: Expr, a: Expr, b: Expr) -> tuple[None, Lazy, Lazy]:
    return None, lambda: where(condition, ct, 0), lambda: where(condition, 0, ct)


@vjp("Sum", broadcasts=True)
def sum_(ct: Expr, y: Expr, *xs: Expr) -> tuple[Expr, ...]:
    return (ct,) * len(xs)


@vjp("Mean", broadcasts=True)
def mean(ct: Expr, y: Expr, *xs: Expr) -> tuple[Lazy, ...]:
    return (lambda: ct * (1 / len(xs)),) * len(xs)


@vjp("Max", broadcasts=True)
def max_(ct: Expr, y: Expr, *xs: Expr) -> tuple[Lazy, ...]:
    if len(xs) == 2:
        a, b = xs
        return lambda: _of_two(ct, a > b, a, b), lambda: _of_two(ct, b > a, a, b)
    return tuple((lambda x=x: _chosen(ct, y, x, xs)) for x in xs)


@vjp("Min", broadcasts=True)
def min_(ct: Expr, y: Expr, *xs: Expr) -> tuple[Lazy, ...]:
    if len(xs) == 2:
        a, b = xs
        return lambda: _of_two(ct, a < b, a, b), lambda: _of_two(ct, b < a, a, b)
    return tuple((lambda x=x: _chosen(ct, y, x, xs)) for x in xs)


def _of_two(ct: Expr, wins: Expr, a: Expr, b: Expr) -> Expr:
    """The cotangent where an input wins, half of it where both are equal. Does not read y."""
    return where(op.Equal(a, b), ct * 0.5, where(wins, ct, 0))


def _chosen(ct: Expr, y: Expr, x: Expr, xs: tuple[Expr, ...]) -> Expr:
    """The share of ``x`` where it equals the extreme ``y``: one by the number of inputs that do."""
    if len(xs) == 1:
        return ct
    count, *others = [op.Equal(each, y).cast(ct.dtype) for each in xs]
    for other in others:
        count = count + other
    return where(op.Equal(x, y), ct / count, 0)


@vjp("Clip")
def clip(ct: Expr, y: Expr, x: Expr, low: Expr | None = None, high: Expr | None = None) -> tuple[Lazy | None, ...]:
    # Where the bounds cross, y is the upper one.
    def by_x() -> Expr:
        inside = [*([] if low is None else [x >= low]), *([] if high is None else [x <= high])]
        if not inside:
            return ct
        return where(inside[0] if len(inside) == 1 else op.And(*inside), ct, 0)

    def by_low() -> Expr:
        assert low is not None
        below = x < low if high is None else op.And(x < low, low < high)
        return sum_to(where(below, ct, 0), y.value, low)

    def by_high() -> Expr:
        assert high is not None
        above = x > high if low is None else op.Or(x > high, high < low)
        return sum_to(where(above, ct, 0), y.value, high)

    return by_x, by_low, by_high
