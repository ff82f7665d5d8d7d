"""Exponentials as polynomials, which LLVM makes vectors of; through the C library they are calls for each element.

Runs in the worker. float32 only. exp: argument reduction by ln 2 and a polynomial (Cephes' expf; error below 2 units
in the last place, with overflow to infinity and underflow to 0). tanh: the rational approximation that Eigen and ONNX
Runtime use (a few units in the last place; 1 beyond 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx_cfad.targets.tvm.loop_tvm import tirx, tvm
from onnx_cfad.targets.tvm.loop_views import rewritten

_TANH_TOP = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
             1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)  # fmt: skip
_TANH_BOTTOM = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_TANH_LIMIT = 9.0
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP_HIGHEST, _EXP_LOWEST = 88.72283, -103.97208
_KNOWN = ("tirx.tanh", "tirx.exp", "tirx.sigmoid")


def with_polynomials(statement: Any) -> Any:
    """``statement`` with tanh, exp and sigmoid of float32 spelled out."""
    return rewritten(statement, tvm.ir.Call, _spelled)


def _spelled(call: Any) -> Any:
    name = getattr(call.op, "name", "")
    if name not in _KNOWN or str(call.ty) != "float32":
        return call
    x = tirx.Var("x", "float32")
    made = {"tirx.tanh": _tanh, "tirx.exp": _exp, "tirx.sigmoid": _sigmoid}[name](x)
    return tirx.Let(x, call.args[0], made)


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _let(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    variable = tirx.Var(name, str(value.ty))
    return tirx.Let(variable, value, body(variable))


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    value = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _number(coefficient)
    return value


def _tanh(x: Any) -> Any:
    limited = tirx.min(tirx.max(x, _number(-_TANH_LIMIT)), _number(_TANH_LIMIT))
    result = _let(
        "t",
        limited,
        lambda t: _let("q", t * t, lambda q: t * _horner(q, _TANH_TOP) / _horner(q, _TANH_BOTTOM)),
    )
    return tirx.Select(tirx.isnan(x), x, result)  # min and max would drop it


def _exp(x: Any) -> Any:
    limited = tirx.min(tirx.max(x, _number(_EXP_LOWEST)), _number(_EXP_HIGHEST))

    def scaled(t: Any) -> Any:
        whole = tirx.floor(t * _number(_LOG2_E) + _number(0.5))
        return _let("n", whole, lambda n: _let("r", (t - n * _number(_LN2_HIGH)) - n * _number(_LN2_LOW), of_rest(n)))

    def of_rest(n: Any) -> Callable[[Any], Any]:
        def result(r: Any) -> Any:
            near_one = _horner(r, _EXP) * (r * r) + r + _number(1.0)
            return _let(
                "k", n.astype("int32"), lambda k: _let("half", k >> 1, lambda h: near_one * _power(h) * _power(k - h))
            )

        return result

    result = _let("t", limited, scaled)
    infinite = tirx.Select(x > _number(_EXP_HIGHEST), _number(float("inf")), result)
    bounded = tirx.Select(x < _number(_EXP_LOWEST), _number(0.0), infinite)
    return tirx.Select(tirx.isnan(x), x, bounded)


def _power(k: Any) -> Any:
    """2 to the power of an integer from -126 to 127."""
    return tirx.reinterpret("float32", (k + 127) << 23)


def _sigmoid(x: Any) -> Any:
    return _let("e", _exp(_number(0.0) - x), lambda e: _number(1.0) / (_number(1.0) + e))
