"""docs/semantics.md at kinks and poles: the derivative is PyTorch's, or exactly zero where the page says so."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

import onnx_cfad as cfad
from tests.onnx_text import model
from tests.oracle import run_ort

Feeds = dict[str, list[float]]
INFINITE = float("-inf")


class Point(NamedTuple):
    """A function of x at a point, and the same function in PyTorch.

    Attributes:
        body: Initializers and nodes of the ONNX model, which give y from x (and b).
        torch: y in PyTorch, as an expression in x (and b), torch and F, which is torch.nn.functional.
        feeds: The point.
        ours: What this package gives, where it is not what PyTorch gives.
    """

    body: str
    torch: str
    feeds: Feeds
    ours: list[float] | None = None


POINTS = {
    "Relu": Point("{ y = Relu (x) }", "F.relu(x)", {"x": [0.0]}),
    "Abs": Point("{ y = Abs (x) }", "x.abs()", {"x": [0.0]}),
    "LeakyRelu": Point("{ y = LeakyRelu <alpha = 0.1> (x) }", "F.leaky_relu(x, 0.1)", {"x": [0.0]}),
    "Elu": Point("{ y = Elu <alpha = 0.5> (x) }", "F.elu(x, 0.5)", {"x": [0.0]}),
    "Celu": Point("{ y = Celu <alpha = 0.5> (x) }", "F.celu(x, 0.5)", {"x": [0.0]}),
    "Selu": Point("{ y = Selu (x) }", "F.selu(x)", {"x": [0.0]}),
    "PRelu": Point("<float[1] a = {0.2}> { y = PRelu (x, a) }", "F.prelu(x, torch.tensor([0.2]))", {"x": [0.0]}),
    "ThresholdedRelu": Point("{ y = ThresholdedRelu <alpha = 1.0> (x) }", "F.threshold(x, 1, 0)", {"x": [1.0]}),
    "HardSigmoid": Point(
        "{ y = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) }", "F.hardsigmoid(x)", {"x": [-3.0, 3.0]}
    ),
    "HardSwish": Point("{ y = HardSwish (x) }", "F.hardswish(x)", {"x": [-3.0, 3.0]}),
    "Shrink": Point("{ y = Shrink <lambd = 0.5, bias = 0.5> (x) }", "F.softshrink(x, 0.5)", {"x": [-0.5, 0.5]}),
    "Clip": Point("<float l = {-1.0}, float h = {1.0}> { y = Clip (x, l, h) }", "x.clamp(-1, 1)", {"x": [-1.0, 1.0]}),
    "Sign": Point("{ y = Sign (x) }", "x.sign()", {"x": [0.0, 2.0]}),
    "Round": Point("{ y = Round (x) }", "x.round()", {"x": [0.5, 0.7]}),
    "Max": Point("{ y = Max (x, b) }", "torch.maximum(x, b)", {"x": [1.0], "b": [1.0]}),
    "Min": Point("{ y = Min (x, b) }", "torch.minimum(x, b)", {"x": [1.0], "b": [1.0]}),
    "ReduceMax": Point("{ y = ReduceMax <keepdims = 1> (x) }", "x.amax()", {"x": [1.0, 1.0, 0.0]}),
    "ReduceMin": Point("{ y = ReduceMin <keepdims = 1> (x) }", "x.amin()", {"x": [0.0, 1.0, 0.0]}),
    "MaxPool": Point(
        """<int64[3] s = {1, 1, 3}, int64[1] flat = {-1}>
        { r = Reshape (x, s)  p = MaxPool <kernel_shape = [3]> (r)  y = Reshape (p, flat) }""",
        "F.max_pool1d(x.reshape(1, 1, 3), 3)",
        {"x": [1.0, 2.0, 2.0]},
    ),
    "TopK": Point("<int64[1] k = {1}> { y, i = TopK (x, k) }", "x.topk(1)[0]", {"x": [1.0, 2.0, 2.0]}),
    "Sqrt at 0": Point("{ y = Sqrt (x) }", "x.sqrt()", {"x": [0.0]}),
    "Log at 0": Point("{ y = Log (x) }", "x.log()", {"x": [0.0]}),
    "Pow at 0": Point("<float p = {0.5}> { y = Pow (x, p) }", "x**0.5", {"x": [0.0]}),
    "Pow to 0": Point("<float p = {0.0}> { y = Pow (x, p) }", "x**0.0", {"x": [0.0]}),
    "Pow of 0 by the exponent": Point("<float p = {0.0}> { y = Pow (p, x) }", "torch.zeros(1) ** x", {"x": [0.0, 1.0]}),
    "Pow of -2 by the exponent": Point(
        "<float p = {-2.0}> { y = Pow (p, x) }", "torch.tensor([-2.0]) ** x", {"x": [2.0]}
    ),
    "ReduceL2 at 0": Point("{ y = ReduceL2 <keepdims = 1> (x) }", "x.norm()", {"x": [0.0, 0.0]}),
    "norm written out at 0": Point(
        "{ q = Mul (x, x)  s = ReduceSum <keepdims = 1> (q)  y = Sqrt (s) }",
        "(x * x).sum().sqrt()",
        {"x": [0.0, 0.0]},
        [0.0, 0.0],
    ),
    "ReduceProd with 0": Point("{ y = ReduceProd <keepdims = 1> (x) }", "x.prod()", {"x": [0.0, 2.0, 3.0]}),
    "product with 0 at a pole": Point(
        "<float zero = {0.0}> { s = Sqrt (x)  y = Mul (s, zero) }", "x.sqrt() * 0", {"x": [0.0]}
    ),
    "Relu behind a pole": Point(
        "<float one = {1.0}> { s = Sqrt (x)  d = Sub (s, one)  y = Relu (d) }",
        "F.relu(x.sqrt() - 1)",
        {"x": [0.0]},
    ),
    "Where behind a pole": Point(
        "<float zero = {0.0}> { c = Greater (x, zero)  s = Sqrt (x)  y = Where (c, s, zero) }",
        "torch.where(x > 0, x.sqrt(), torch.zeros(()))",
        {"x": [0.0, 4.0]},
        [0.0, 0.25],
    ),
    "Max behind a pole": Point(
        "<float zero = {0.0}, float one = {1.0}> { s = Sqrt (x)  d = Sub (s, one)  y = Max (d, zero) }",
        "torch.maximum(x.sqrt() - 1, torch.zeros(()))",
        {"x": [0.0]},
        [0.0],
    ),
    "ReduceLogSumExp of nothing": Point(
        "{ y = ReduceLogSumExp <keepdims = 1> (x) }",
        "x.logsumexp(0)",
        {"x": [INFINITE, INFINITE]},
        [0.0, 0.0],
    ),
}


def gradient_of_sum(point: Point) -> np.ndarray[Any, Any]:
    ports = ", ".join(f"float[{len(values)}] {name}" for name, values in point.feeds.items())
    proto = model(f"m ({ports}) => (float[K] y) {point.body}")
    feeds = {name: np.asarray(values, np.float32) for name, values in point.feeds.items()}
    seed = np.ones_like(run_ort(proto, feeds)["y"])
    return run_ort(cfad.vjp(proto, wrt=["x"]).proto(), {**feeds, "y_grad": seed})["x_grad"]


@functools.cache
def in_torch(name: str) -> np.ndarray[Any, Any]:
    torch = pytest.importorskip("torch")
    point = POINTS[name]
    feeds: dict[str, Any] = {key: torch.tensor(values, requires_grad=key == "x") for key, values in point.feeds.items()}
    y: Any = eval(point.torch, {"torch": torch, "F": torch.nn.functional, **feeds})
    y.sum().backward()
    return feeds["x"].grad.numpy()


@pytest.mark.parametrize("name", [name for name, point in POINTS.items() if point.ours is None])
def test_derivative_is_that_of_torch(name: str) -> None:
    np.testing.assert_array_almost_equal(gradient_of_sum(POINTS[name]), in_torch(name), decimal=6)


@pytest.mark.parametrize("name", [name for name, point in POINTS.items() if point.ours is not None])
def test_derivative_is_finite_where_that_of_torch_is_not(name: str) -> None:
    np.testing.assert_allclose(gradient_of_sum(POINTS[name]), np.asarray(POINTS[name].ours), rtol=1e-6)
    assert np.isnan(in_torch(name)).any()


def test_value_without_a_path_gets_zeros_and_a_warning() -> None:
    gradient = cfad.vjp(model("m (float[2] x, float[3] z) => (float[2] y) { y = Sin (x) }"), wrt=["x", "z"])
    found = run_ort(
        gradient.proto(), {"x": np.ones(2, np.float32), "z": np.ones(3, np.float32), "y_grad": np.ones(2, np.float32)}
    )
    np.testing.assert_array_equal(found["z_grad"], np.zeros(3, np.float32))
    (warning,) = gradient.report.warnings
    assert "'z'" in warning


def test_interface_is_inputs_seeds_outputs_gradients() -> None:
    text = "m (float[N] x, int64 k, float[N] w) => (float[N] y, float[N] z) { y = Mul (x, w)  z = Sin (y) }"
    proto = cfad.vjp(model(text), wrt=["w", "x"]).proto()
    assert [value.name for value in proto.graph.input] == ["x", "k", "w", "y_grad", "z_grad"]
    assert [value.name for value in proto.graph.output] == ["y", "z", "w_grad", "x_grad"]
    shapes = [value.type.tensor_type.shape.dim[0].dim_param for value in proto.graph.output]
    assert shapes == ["N"] * 4
