"""The activation functions that RNN, GRU and LSTM take by name, with their slopes. At a kink: PyTorch's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import UnsupportedOp

# The functions that take alpha and beta, with the defaults of the ONNX operators of the same name.
# ONNX Runtime's RNN (not its GRU and LSTM) takes 0 where they are left out.
_ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation function behind an optional clip of its argument.

    Attributes:
        name: In lower case.
        alpha: First parameter, where the function has one.
        beta: Second parameter, where the function has one.
        bound: The argument is clipped to [-bound, bound]; None for no clip.
    """

    name: str
    alpha: float
    beta: float
    bound: float | None

    def __call__(self, z: Expr) -> Expr:
        """The value at ``z``."""
        return _value(self, self._clipped(z))

    def slope(self, z: Expr, y: Expr) -> Expr:
        """The derivative at ``z``, where the value is ``y``."""
        slope = _slope(self, self._clipped(z), y)
        return slope if self.bound is None else where(op.Abs(z) <= self.bound, slope, 0)

    def _clipped(self, z: Expr) -> Expr:
        return z if self.bound is None else op.Clip(z, -self.bound, self.bound)


def activations(
    names: Sequence[str],
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    bound: float | None,
) -> list[Activation]:
    """The functions called ``names``, in any case; parameters go in order to the functions that take them.

    Raises:
        UnsupportedOp: ONNX has no such function.
    """
    alpha, beta = iter(alphas or ()), iter(betas or ())
    found: list[Activation] = []
    for name in map(str.lower, names):
        if name not in _FUNCTIONS:
            raise UnsupportedOp(
                "", f"the activation '{name}' is not one of {', '.join(_FUNCTIONS)}", "Correct its name."
            )
        found.append(Activation(name, _next(alpha, _ALPHA, name), _next(beta, _BETA, name), bound))
    return found


def _next(given: Iterator[float], defaults: dict[str, float], name: str) -> float:
    return float(next(given, defaults[name])) if name in defaults else 0.0


def _value(f: Activation, z: Expr) -> Expr:
    if f.name == "affine":
        return f.alpha * z + f.beta
    if f.name == "scaledtanh":
        return f.alpha * op.Tanh(f.beta * z)
    parameters = {"alpha": f.alpha if f.name in _ALPHA else None, "beta": f.beta if f.name in _BETA else None}
    return getattr(op, _FUNCTIONS[f.name])(z, **parameters)


def _slope(f: Activation, z: Expr, y: Expr) -> Expr:
    match f.name:
        case "sigmoid":
            return y * (1 - y)
        case "tanh":
            return 1 - y * y
        case "relu":
            return op.Cast(y > 0, to=int(y.dtype))
        case "hardsigmoid":
            return where(op.And(y > 0, y < 1), _number(f.alpha, y), 0)
        case "affine":
            return op.Expand(_number(f.alpha, z), z.shape)
        case "leakyrelu":
            return where(z > 0, 1, _number(f.alpha, z))
        case "thresholdedrelu":
            return op.Cast(z > f.alpha, to=int(y.dtype))
        case "scaledtanh":
            t = op.Tanh(f.beta * z)
            return (f.alpha * f.beta) * (1 - t * t)
        case "elu":
            return where(z > 0, 1, y + f.alpha)
        case "softsign":
            root = 1 + op.Abs(z)
            return 1 / (root * root)
        case _:
            return op.Sigmoid(z)


def _number(value: float, like: Expr) -> Expr:
    return like.builder.constant(value, like.dtype)


_FUNCTIONS = {
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "relu": "Relu",
    "hardsigmoid": "HardSigmoid",
    "affine": "Affine",
    "leakyrelu": "LeakyRelu",
    "thresholdedrelu": "ThresholdedRelu",
    "scaledtanh": "ScaledTanh",
    "elu": "Elu",
    "softsign": "Softsign",
    "softplus": "Softplus",
}
