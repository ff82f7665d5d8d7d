"""docs/semantics.md, line by line, at kinks, poles and masks: reverse and forward mode, and second derivatives.

The oracle is the whole Jacobian (and Hessian of the sum) in closed form, written out beside each function.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad.inspection import inspect
from tests.onnx_text import model
from tests.oracle import run_ort

INF, NAN = float("inf"), float("nan")
Matrix = list[list[float]]


class Point(NamedTuple):
    """A function y of x at a point.

    Attributes:
        body: Initializers and nodes that give y [K] from x [N].
        x: The point.
        jacobian: dy/dx [K, N].
        hessian: The second derivative of the sum of y [N, N]; None where the page says nothing about it.
        forward: dy/dx as forward mode gives it, where that is not the same.
    """

    body: str
    x: list[float]
    jacobian: Matrix
    hessian: Matrix | None = None
    forward: Matrix | None = None


def diagonal(*entries: float) -> Matrix:
    return [[entry if i == j else 0.0 for j in range(len(entries))] for i, entry in enumerate(entries)]


def flat(*entries: float) -> dict[str, Any]:
    """The derivatives of a function that is piecewise linear, elementwise."""
    return {"jacobian": diagonal(*entries), "hessian": diagonal(*[0.0] * len(entries))}


ZERO2, ZERO3 = diagonal(0, 0), diagonal(0, 0, 0)
HALF = [[0.5, 0.5, 0.0]]
SHAPED = "int64[3] s = {1, 1, 3}, int64[1] all = {-1}"

KINKS = {
    "Relu": Point("{ y = Relu (x) }", [0.0], **flat(0)),
    "Abs": Point("{ y = Abs (x) }", [0.0], **flat(0)),
    "Sign": Point("{ y = Sign (x) }", [0.0, 2.0], **flat(0, 0)),
    "Floor": Point("{ y = Floor (x) }", [1.0, 2.5], **flat(0, 0)),
    "Ceil": Point("{ y = Ceil (x) }", [1.0, 2.5], **flat(0, 0)),
    "Round": Point("{ y = Round (x) }", [0.5, 0.7], **flat(0, 0)),
    "LeakyRelu": Point("{ y = LeakyRelu <alpha = 0.25> (x) }", [0.0], **flat(0.25)),
    "PRelu": Point("<float[1] a = {0.25}> { y = PRelu (x, a) }", [0.0], **flat(0.25)),
    "Elu": Point("{ y = Elu <alpha = 0.5> (x) }", [0.0], diagonal(0.5)),
    "Celu": Point("{ y = Celu <alpha = 0.5> (x) }", [0.0], diagonal(1)),
    "Selu": Point("{ y = Selu <alpha = 2.0, gamma = 1.5> (x) }", [0.0], diagonal(3)),
    "ThresholdedRelu": Point("{ y = ThresholdedRelu <alpha = 1.0> (x) }", [1.0], **flat(0)),
    "Shrink": Point("{ y = Shrink <lambd = 0.5, bias = 0.5> (x) }", [-0.5, 0.5], **flat(0, 0)),
    "HardSigmoid": Point("{ y = HardSigmoid <alpha = 0.25, beta = 0.5> (x) }", [-2.0, 2.0], **flat(0, 0)),
    "HardSwish": Point("{ y = HardSwish (x) }", [-3.0, 3.0], diagonal(0, 1)),
    "Clip": Point("<float l = {-1.0}, float h = {1.0}> { y = Clip (x, l, h) }", [-1.0, 1.0, 2.0], **flat(1, 1, 0)),
    "Max": Point("<float one = {1.0}> { y = Max (x, one) }", [1.0, 2.0], **flat(0.5, 1)),
    "Min": Point("<float one = {1.0}> { y = Min (x, one) }", [1.0, 2.0], **flat(0.5, 0)),
    "Max of three": Point("<float z = {0.0}, float w = {1.0}> { y = Max (x, w, z) }", [1.0], **flat(0.5)),
    "ReduceMax": Point("{ y = ReduceMax <keepdims = 1> (x) }", [1.0, 1.0, 0.0], HALF, ZERO3),
    "ReduceMin": Point("{ y = ReduceMin <keepdims = 1> (x) }", [0.0, 0.0, 1.0], HALF, ZERO3),
    "MaxPool": Point(
        f"<{SHAPED}> {{ r = Reshape (x, s)  p = MaxPool <kernel_shape = [3]> (r)  y = Reshape (p, all) }}",
        [1.0, 2.0, 2.0],
        [[0.0, 1.0, 0.0]],
        ZERO3,
    ),
    "GlobalMaxPool": Point(
        f"<{SHAPED}> {{ r = Reshape (x, s)  p = GlobalMaxPool (r)  y = Reshape (p, all) }}",
        [1.0, 2.0, 2.0],
        [[0.0, 1.0, 0.0]],
        ZERO3,
    ),
    "TopK": Point("<int64[1] k = {1}> { y, i = TopK (x, k) }", [1.0, 2.0, 2.0], [[0.0, 1.0, 0.0]], ZERO3),
    "ScatterElements": Point(
        '<int64[1] i = {0}, float[1] u = {1.0}> { y = ScatterElements <reduction = "max"> (x, i, u) }',
        [1.0, 0.0],
        **flat(0.5, 1),
    ),
    "ReduceL2": Point("{ y = ReduceL2 <keepdims = 1> (x) }", [0.0, 0.0], [[0.0, 0.0]], ZERO2),
    "LpPool": Point(
        f"<{SHAPED}> {{ r = Reshape (x, s)  p = LpPool <kernel_shape = [3]> (r)  y = Reshape (p, all) }}",
        [0.0, 0.0, 0.0],
        [[0.0, 0.0, 0.0]],
        ZERO3,
    ),
    "LpNormalization": Point("{ y = LpNormalization <axis = 0> (x) }", [0.0, 0.0], ZERO2, ZERO2),
    "Pow to 0": Point("<float p = {0.0}> { y = Pow (x, p) }", [0.0, 1.0], **flat(0, 0)),
    "Pow of 0 by the exponent": Point("<float zero = {0.0}> { y = Pow (zero, x) }", [0.0, 1.0], **flat(0, 0)),
    "Pow of a negative base": Point(
        "<float p = {3.0}> { y = Pow (x, p) }", [-2.0, 0.0], diagonal(12, 0), diagonal(-12, 0)
    ),
    "square at 0": Point("<float p = {2.0}> { y = Pow (x, p) }", [0.0], diagonal(0), diagonal(2)),
}

D = "d = Sub (x, b)"
B = "float[2] b = {1.0, 2.0}"
AT_B: dict[str, Any] = {"x": [1.0, 2.0], "jacobian": [[0.0, 0.0]], "hessian": ZERO2}
NORMS = {
    "sum of d * d": Point(f"<{B}> {{ {D} q = Mul (d, d) s = ReduceSum <keepdims = 1> (q) y = Sqrt (s) }}", **AT_B),
    "sum of d ** 2": Point(
        f"<{B}, float two = {{2.0}}> {{ {D} q = Pow (d, two) s = ReduceSum <keepdims = 1> (q) y = Sqrt (s) }}", **AT_B
    ),
    "ReduceSumSquare": Point(f"<{B}> {{ {D} s = ReduceSumSquare <keepdims = 1> (d) y = Sqrt (s) }}", **AT_B),
    "cdist of torch.onnx": Point(
        f"""<{B}, float two = {{2.0}}, float half = {{0.49999975}}>
        {{ {D} q = Pow (d, two) s = ReduceSum <keepdims = 1> (q) y = Pow (s, half) }}""",
        **AT_B,
    ),
    "cdist of torch.onnx, its exponent computed": Point(
        f"""<{B}, float two = {{2.0}}, float one = {{1.0}}, float tiny = {{0.000001}}>
        {{ {D} q = Pow (d, two) s = ReduceSum <keepdims = 1> (q)
           p = Add (two, tiny) half = Div (one, p) y = Pow (s, half) }}""",
        **AT_B,
    ),
    "3-norm": Point(
        f"""<{B}, float three = {{3.0}}, float third = {{0.33333334}}>
        {{ {D} a = Abs (d) q = Pow (a, three) s = ReduceSum <keepdims = 1> (q) y = Pow (s, third) }}""",
        **AT_B,
    ),
    "two coordinates": Point(
        """<int64[1] i = {0}, int64[1] j = {1}, float one = {1.0}, float two = {2.0}> {
            g = Gather (x, i)  h = Gather (x, j)  d = Sub (g, one)  e = Sub (h, two)
            p = Mul (d, d)  q = Mul (e, e)  s = Add (p, q)  y = Sqrt (s) }""",
        **AT_B,
    ),
    "masked and clipped": Point(
        f"""<{B}, float zero = {{0.0}}, bool[2] m = {{1, 0}}> {{
            {D} q = Mul (d, d)  k = Where (m, q, zero)  s = ReduceSum <keepdims = 1> (k)
            c = Clip (s, zero)  y = Sqrt (c) }}""",
        **AT_B,
    ),
    "deviation of torch.onnx": Point(
        """<float one = {1.0}> {
            m = ReduceMean <keepdims = 1> (x)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <keepdims = 1> (q)
            n = Size (x)  f = Cast <to = 1> (n)  g = Sub (f, one)  t = Mul (v, f)  u = Div (t, g)  y = Sqrt (u) }""",
        [2.0, 2.0],
        [[0.0, 0.0]],
        ZERO2,
    ),
    "normalised by what is not below": Point(
        """<float e = {0.5}> {
            s = ReduceSumSquare <keepdims = 1> (x)  n = Sqrt (s)  m = Max (n, e)  y = Div (x, m) }""",
        [0.0, 0.0],
        diagonal(2, 2),
        ZERO2,
    ),
}

POLES = {
    "Sqrt": Point("{ y = Sqrt (x) }", [0.0], [[INF]]),
    "Log": Point("{ y = Log (x) }", [0.0], [[INF]]),
    "Pow": Point("<float p = {0.5}> { y = Pow (x, p) }", [0.0], [[INF]]),
    "Pow below 0": Point("<float p = {-1.0}> { y = Pow (x, p) }", [0.0], [[-INF]]),
    "Div": Point("<float one = {1.0}> { y = Div (one, x) }", [0.0], [[-INF]]),
    "Reciprocal": Point("{ y = Reciprocal (x) }", [0.0], [[-INF]]),
    "Asin": Point("{ y = Asin (x) }", [1.0], [[INF]]),
    "Acosh": Point("{ y = Acosh (x) }", [1.0], [[INF]]),
    "Atanh": Point("{ y = Atanh (x) }", [1.0], [[INF]]),
    "root of a root": Point("{ a = Abs (x)  y = Sqrt (a) }", [0.0], [[NAN]]),
    "root of a difference of squares": Point(
        """<int64[1] i = {0}, int64[1] j = {1}> { g = Gather (x, i)  h = Gather (x, j)
            p = Mul (g, g)  q = Mul (h, h)  s = Sub (p, q)  y = Sqrt (s) }""",
        [1.0, 1.0],
        [[INF, -INF]],
    ),
    "factor of zero": Point("<float zero = {0.0}> { s = Sqrt (x)  y = Mul (s, zero) }", [0.0], [[NAN]]),
    "Relu does not cut": Point(
        "<float one = {1.0}> { s = Sqrt (x)  d = Sub (s, one)  y = Relu (d) }", [0.0], [[NAN]], forward=[[0.0]]
    ),
    "negative base by the exponent": Point("<float b = {-2.0}> { y = Pow (b, x) }", [2.0], [[NAN]]),
}

FROM = "<float zero = {0.0}, float one = {1.0}>"
MASKS = {
    "Where, sqrt or x": Point(
        f"{FROM} {{ c = Greater (x, zero)  s = Sqrt (x)  y = Where (c, s, x) }}",
        [0.0, 4.0],
        diagonal(1, 0.25),
        diagonal(0, -1 / 32),
    ),
    "Where, log or 0": Point(
        f"{FROM} {{ c = Greater (x, zero)  s = Log (x)  y = Where (c, s, zero) }}",
        [-1.0, 0.0, 2.0],
        diagonal(0, 0, 0.5),
        diagonal(0, 0, -0.25),
    ),
    "Where, quotient or 0": Point(
        f"{FROM} {{ c = Greater (x, zero)  s = Div (one, x)  y = Where (c, s, zero) }}",
        [0.0, 2.0],
        diagonal(0, -0.25),
        diagonal(0, 0.25),
    ),
    "Where, power or x": Point(
        "<float zero = {0.0}, float p = {1.5}> { c = Greater (x, zero)  s = Pow (x, p)  y = Where (c, s, x) }",
        [-1.0, 4.0],
        diagonal(1, 3),
        diagonal(0, 0.375),
    ),
    "Where before a pole": Point(
        f"{FROM} {{ c = Greater (x, one)  s = Where (c, x, zero)  y = Sqrt (s) }}",
        [0.5, 4.0],
        diagonal(0, 0.25),
        diagonal(0, -1 / 32),
    ),
    "Max": Point(f"{FROM} {{ s = Sqrt (x)  d = Sub (s, one)  y = Max (d, zero) }}", [0.0, 4.0], diagonal(0, 0.25)),
    "Min": Point(f"{FROM} {{ s = Sqrt (x)  n = Neg (s)  y = Min (n, zero) }}", [4.0], diagonal(-0.25)),
    "Clip": Point(f"{FROM} {{ s = Sqrt (x)  y = Clip (s, one) }}", [0.0, 4.0], diagonal(0, 0.25)),
    "ReduceMax": Point("{ s = Sqrt (x)  y = ReduceMax <keepdims = 1> (s) }", [0.0, 4.0], [[0.0, 0.25]]),
    "ReduceMin": Point("{ s = Sqrt (x)  n = Neg (s)  y = ReduceMin <keepdims = 1> (n) }", [0.0, 4.0], [[0.0, -0.25]]),
    "TopK": Point("<int64[1] k = {1}> { s = Sqrt (x)  y, i = TopK (s, k) }", [0.0, 4.0], [[0.0, 0.25]]),
    "Compress": Point("<bool[2] c = {0, 1}> { s = Sqrt (x)  y = Compress (s, c) }", [0.0, 4.0], [[0.0, 0.25]]),
    "branch not taken": Point(
        """<float zero = {0.0}> { t = ReduceSum <keepdims = 0> (x)  c = Greater (t, zero)
            y = If (c) <then_branch = a () => (float[K] u) { u = Sqrt (x) },
                        else_branch = b () => (float[K] v) { v = Add (x, x) }> }""",
        [0.0],
        [[2.0]],
        [[0.0]],
    ),
    "iteration not run": Point(
        """<int64 n = {0}> { y = Loop (n, , x) <body = body (int64 i, bool go, float[K] s) => (bool on, float[K] t) {
            on = Identity (go)  t = Sqrt (s) }> }""",
        [0.0],
        [[1.0]],
        [[0.0]],
    ),
    "ReduceLogSumExp of nothing": Point("{ y = ReduceLogSumExp <keepdims = 1> (x) }", [-INF, -INF], [[0.0, 0.0]]),
    "Softmax": Point(
        "<bool[3] m = {1, 1, 0}, float low = {-inf}> { s = Where (m, x, low)  y = Softmax <axis = 0> (s) }",
        [1.0, 1.0, 5.0],
        [[0.25, -0.25, 0.0], [-0.25, 0.25, 0.0], [0.0, 0.0, 0.0]],
        ZERO3,
    ),
    "LogSoftmax": Point(
        "<bool[3] m = {1, 1, 0}, float low = {-inf}, int64[1] k = {0}> {"
        " s = Where (m, x, low)  l = LogSoftmax <axis = 0> (s)  y = Gather (l, k) }",
        [1.0, 1.0, 5.0],
        [[0.5, -0.5, 0.0]],
        [[-0.25, 0.25, 0.0], [0.25, -0.25, 0.0], [0.0, 0.0, 0.0]],
    ),
    "Softmax of a row that is masked throughout": Point(
        "<float low = {-inf}, bool[2] m = {0, 0}, float zero = {0.0}> {"
        " s = Where (m, x, low)  p = Softmax <axis = 0> (s)  y = Where (m, p, zero) }",
        [1.0, 2.0],
        ZERO2,
        ZERO2,
    ),
}

POINTS = {
    f"{section}: {name}": point
    for section, points in (("kink", KINKS), ("norm", NORMS), ("pole", POLES), ("mask", MASKS))
    for name, point in points.items()
}
WITH_SECOND = [name for name, point in POINTS.items() if point.hessian is not None]


def primal(point: Point) -> Any:
    return model(f"m (float[{len(point.x)}] x) => (float[{len(point.jacobian)}] y) {point.body.replace('[K]', '[1]')}")


def rows(proto: Any, feeds: dict[str, Any], entering: str, leaving: str, count: int) -> np.ndarray[Any, Any]:
    """What leaves for each unit vector that enters."""
    units = np.eye(count, dtype=np.float32)
    return np.stack([run_ort(proto, {**feeds, entering: unit})[leaving] for unit in units])


@pytest.mark.parametrize("name", POINTS)
def test_reverse(name: str) -> None:
    point = POINTS[name]
    proto = cfad.vjp(primal(point)).proto()
    found = rows(proto, {"x": np.asarray(point.x, np.float32)}, "y_grad", "x_grad", len(point.jacobian))
    np.testing.assert_allclose(found, np.asarray(point.jacobian, np.float32), rtol=1e-5)


@pytest.mark.parametrize("name", POINTS)
def test_forward(name: str) -> None:
    point = POINTS[name]
    proto = cfad.jvp(primal(point)).proto()
    found = rows(proto, {"x": np.asarray(point.x, np.float32)}, "x_tangent", "y_tangent", len(point.x))
    np.testing.assert_allclose(found, np.asarray(point.forward or point.jacobian, np.float32).T, rtol=1e-5)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("name", WITH_SECOND)
def test_second_derivative(name: str, mode: str) -> None:
    point = POINTS[name]
    feeds = {"x": np.asarray(point.x, np.float32), "y_grad": np.ones(len(point.jacobian), np.float32)}
    first = cfad.vjp(primal(point)).proto()
    if mode == "reverse":
        second, ends = cfad.vjp(first, wrt=["x"], outputs=["x_grad"]), ("x_grad_grad", "x_grad_2")
    else:
        second, ends = cfad.jvp(first, wrt=["x"], outputs=["x_grad"]), ("x_tangent", "x_grad_tangent")
    found = rows(second.proto(), feeds, *ends, len(point.x))
    np.testing.assert_allclose(found, np.asarray(point.hessian, np.float32), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", POINTS)
def test_inspect_names_what_may_be_infinite_and_nothing_else(name: str) -> None:
    point = POINTS[name]
    found = inspect(primal(point)).poles
    assert all(pole.path.startswith("main/") and pole.reason for pole in found)
    if name.startswith("pole"):
        assert found
    if name.startswith("mask: Where, sqrt"):
        assert found[0].reason == "infinite where 'x' is 0; 0 where a selection leaves it out"
    if name.startswith("norm"):
        assert not found
