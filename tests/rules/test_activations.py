"""Rules of rules/activations.py against central differences; at kinks against PyTorch; far out against the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model, run_ort
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(29)
# ONNX Runtime 1.32 has no float64 kernel on the CPU for these.
NO_DOUBLE = frozenset(
    ("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Selu", "Shrink", "Softplus")
    + ("Softsign", "Swish", "ThresholdedRelu")
)
# The reference evaluator computes these in float32.
ROUNDED: dict[str, Any] = {name: {"step": 1e-3, "rtol": 1e-4, "atol": 1e-4} for name in ("Gelu", "Selu")}


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def runner_of(op_type: str) -> str:
    return "reference" if op_type in NO_DOUBLE else "ort"


def spaced(*shape: int) -> np.ndarray:
    """Numbers on both sides of the kinks (0, 0.5, 1, 3), none near one."""
    numbers = np.linspace(-4.35, 4.3, int(np.prod(shape)))
    return np.asarray(RNG.permutation(numbers)).reshape(shape)


def of(op_type: str, name: str = "", *, opset: int = 21, **attributes: Any) -> Case:
    return case(f"{op_type}{name}", op_type, {"x": spaced(3, 4)}, opset=opset, **attributes)


ELEMENTWISE = [
    of("Relu"), of("LeakyRelu"), of("LeakyRelu", "-negative", alpha=-0.3), of("ThresholdedRelu"),
    of("ThresholdedRelu", "-low", alpha=-1.2), of("Elu"), of("Elu", "-alpha", alpha=0.7),
    of("Selu"), of("Selu", "-both", alpha=1.3, gamma=0.8), of("Sigmoid"),
    of("HardSigmoid"), of("HardSigmoid", "-both", alpha=0.15, beta=0.4), of("HardSwish"), of("Softplus"),
    of("Softsign"), of("Shrink"),
    of("Shrink", "-both", lambd=1.2, bias=0.4), of("Mish"),
    of("Swish", opset=24), of("Swish", "-alpha", alpha=1.7, opset=24),
    of("Gelu"), of("Gelu", "-tanh", approximate="tanh"),
]  # fmt: skip
SLOPES = [
    case(f"PRelu-{name}", "PRelu", {"x": normal(2, 3, 4), "slope": slope})
    for name, slope in {"same": normal(2, 3, 4), "channel": normal(3, 1), "one": normal(1), "scalar": normal()}.items()
]
SOFTMAXES = [
    case(f"{op_type}{axis}", op_type, {"x": normal(2, 3, 4)}, axis=axis)
    for op_type in ("Softmax", "LogSoftmax")
    for axis in (-1, 0, 1)
]


@each_form([*ELEMENTWISE, *SLOPES, *SOFTMAXES])
def test_activation(case: Case, form: str) -> None:
    check(case, form, runner=runner_of(case.node.op_type), **ROUNDED.get(case.node.op_type, {}))


def test_swiglu_which_onnxruntime_lacks() -> None:
    node = helper.make_node("SwiGLU", ["a", "b"], ["y"], alpha=1.3)
    feeds = {"a": normal(3, 4), "b": normal(3, 4)}
    assert_vjp(node, feeds, runner="reference", opset=28, dims="symbolic")
    assert_second_order(node, feeds, wrt=["a", "b"], runner="reference", opset=28)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_celu_which_has_float32_only(alpha: float) -> None:
    x = spaced(12).astype(np.float32)
    node = helper.make_node("Celu", ["x"], ["y"], alpha=alpha)
    assert_vjp(node, {"x": x}, dims="symbolic")
    model = node_model(node, {"x": x})
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": np.ones(12, np.float32)})["x_grad"]
    np.testing.assert_allclose(found, np.exp(np.minimum(x, 0) / alpha), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", [*ELEMENTWISE, *SLOPES, *SOFTMAXES], ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    runner = runner_of(case.node.op_type)
    assert_same_gradient(
        case.node, case.floats, wrt=list(case.floats), dtype=dtype, runner=runner, opset=case.opset, dims="symbolic"
    )


@pytest.mark.parametrize("case", [*ELEMENTWISE, *SLOPES, *SOFTMAXES], ids=lambda case: case.name)
def test_second_order(case: Case) -> None:
    assert_second_order(
        case.node,
        case.floats,
        wrt=list(case.floats),
        runner=runner_of(case.node.op_type),
        opset=case.opset,
        **ROUNDED.get(case.node.op_type, {}),
    )


def gradient(op_type: str, x: Any, *, dtype: type = np.float32, opset: int = 21, **attributes: Any) -> np.ndarray:
    """The gradient of one node in ONNX Runtime, for a cotangent of ones."""
    feeds = {"x": np.asarray(x, dtype)}
    model = node_model(helper.make_node(op_type, ["x"], ["y"], **attributes), feeds, opset=opset)
    return run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": np.ones_like(feeds["x"])})["x_grad"]


TORCH_KINKS: dict[str, tuple[str, list[float], dict[str, Any], dict[str, Any]]] = {
    "Relu": ("relu", [0.0], {}, {}),
    "LeakyRelu": ("leaky_relu", [0.0], {"alpha": 0.2}, {"negative_slope": 0.2}),
    "ThresholdedRelu": ("threshold", [1.5], {"alpha": 1.5}, {"threshold": 1.5, "value": 0.0}),
    "Elu": ("elu", [0.0], {"alpha": 0.7}, {"alpha": 0.7}),
    "Celu": ("celu", [0.0], {"alpha": 0.7}, {"alpha": 0.7}),
    "Selu": ("selu", [0.0], {}, {}),
    "HardSigmoid": ("hardsigmoid", [-3.0, 3.0], {"alpha": 1 / 6}, {}),
    "HardSwish": ("hardswish", [-3.0, 3.0], {}, {}),
    "Shrink": ("hardshrink", [-0.5, 0.5], {"lambd": 0.5}, {"lambd": 0.5}),
    "Softsign": ("softsign", [0.0], {}, {}),
}


@pytest.mark.parametrize("op_type", TORCH_KINKS)
def test_kinks_follow_torch(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    name, points, attributes, options = TORCH_KINKS[op_type]
    x = torch.tensor(points, requires_grad=True)
    getattr(torch.nn.functional, name)(x, **options).sum().backward()
    np.testing.assert_allclose(gradient(op_type, points, **attributes), x.grad.numpy(), rtol=1e-6)


def test_prelu_at_zero_follows_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(1, 1, requires_grad=True)
    slope = torch.full((1,), 0.3, requires_grad=True)
    torch.nn.functional.prelu(x, slope).sum().backward()
    feeds = {"x": np.zeros((1, 1), np.float32), "slope": np.full(1, 0.3, np.float32)}
    model = node_model(helper.make_node("PRelu", ["x", "slope"], ["y"]), feeds)
    found = run_ort(cfad.vjp(model, wrt=["x", "slope"]).proto(), {**feeds, "y_grad": np.ones((1, 1), np.float32)})
    np.testing.assert_array_equal(found["x_grad"], x.grad.numpy())
    np.testing.assert_array_equal(found["slope_grad"], slope.grad.numpy())


# The slopes at minus and plus infinity.
LIMITS: dict[str, tuple[float, float]] = {
    "Elu": (0, 1), "Celu": (0, 1), "Selu": (0, 1.0507), "Sigmoid": (0, 0), "HardSigmoid": (0, 0), "HardSwish": (0, 1),
    "Softplus": (0, 1), "Softsign": (0, 0), "Mish": (0, 1), "Swish": (0, 1), "Gelu": (0, 1), "Tanh": (0, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [(name, dtype) for name in LIMITS for dtype in (np.float32, np.float16) if (name, dtype) != ("Celu", np.float16)],
)
def test_limits_far_out(op_type: str, dtype: type) -> None:
    far = [-6e4, -300.0, -60.0, 60.0, 300.0, 6e4] if dtype is np.float16 else [-1e30, -1e6, -300.0, 300.0, 1e6, 1e30]
    low, high = LIMITS[op_type]
    for attributes in ({}, {"approximate": "tanh"}) if op_type == "Gelu" else ({},):
        found = gradient(op_type, far, dtype=dtype, opset=24, **attributes)
        np.testing.assert_allclose(found, [low] * 3 + [high] * 3, atol=1e-3)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_large_and_masked_scores(op_type: str) -> None:
    x = np.asarray([[1e4, 1e4 - 1, -1e4], [-np.inf, 0.0, 1.0]], np.float32)
    model = node_model(helper.make_node(op_type, ["x"], ["y"]), {"x": x})
    seed = np.asarray([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0]], np.float32)
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": seed})["x_grad"]
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    expected = (
        p * (seed - (p * seed).sum(1, keepdims=True)) if op_type == "Softmax" else seed - p * seed.sum(1, keepdims=True)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_row_without_scores_that_is_masked_passes_nothing(op_type: str) -> None:
    """Softmax of nothing but -inf is NaN, which attention replaces; what was replaced has no part in the gradient."""
    nodes = [
        helper.make_node(op_type, ["x"], ["p"]),
        helper.make_node("IsNaN", ["p"], ["empty"]),
        helper.make_node("Where", ["empty", "zero", "p"], ["y"]),
    ]
    x = np.asarray([[-np.inf, -np.inf, -np.inf], [0.5, 0.0, 1.0]], np.float32)
    model = node_model(nodes, {"x": x}, constants={"zero": np.asarray(0, np.float32)})
    seed = np.asarray([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0]], np.float32)
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": seed})["x_grad"]
    p = np.exp(x[1]) / np.exp(x[1]).sum()
    of_softmax, of_log = p * (seed[1] - (p * seed[1]).sum()), seed[1] - p * seed[1].sum()
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(found[1], of_softmax if op_type == "Softmax" else of_log, atol=1e-6)


def test_hardmax_passes_no_derivative() -> None:
    nodes = [helper.make_node("Hardmax", ["x"], ["h"]), helper.make_node("Mul", ["h", "x"], ["y"])]
    x = np.asarray([[0.2, 0.9, -1.0]], np.float32)
    found = run_ort(cfad.vjp(node_model(nodes, {"x": x}), wrt=["x"]).proto(), {"x": x, "y_grad": np.ones_like(x)})
    np.testing.assert_array_equal(found["x_grad"], [[0.0, 1.0, 0.0]])
