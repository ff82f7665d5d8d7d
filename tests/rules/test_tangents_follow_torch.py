"""Tangents against torch.func.jvp for operators that PyTorch has: forward mode, made by others, in another way."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import node_model, run_ort

Array = np.ndarray[Any, Any]


class Twin(NamedTuple):
    """An operator and the same in PyTorch.

    Attributes:
        torch: Of inputs named as the feeds are, in float64, with torch, and F, which is torch.nn.functional.
        shapes: Of the inputs, which get a tangent each.
        attributes: Of the node.
        fixed: Integer inputs that follow.
        kind: The type that ONNX Runtime has a kernel for.
        positive: Inputs are between 0.2 and 0.9.
        opset: Of the model.
    """

    torch: str
    shapes: dict[str, tuple[int, ...]]
    attributes: dict[str, Any] = {}  # noqa: RUF012 - never changed
    fixed: dict[str, list[int]] = {}  # noqa: RUF012
    kind: type = np.float64
    positive: bool = False
    opset: int = 21


X: dict[str, tuple[int, ...]] = {"x": (3, 4)}
PAIR: dict[str, tuple[int, ...]] = {"a": (3, 4), "b": (4,)}
CONV: dict[str, tuple[int, ...]] = {"x": (1, 2, 7), "w": (3, 2, 3), "b": (3,)}
TRANSPOSED: dict[str, tuple[int, ...]] = {"x": (1, 2, 4), "w": (2, 3, 3), "b": (3,)}
NORM: dict[str, tuple[int, ...]] = {"x": (2, 3, 4), "g": (4,), "b": (4,)}
GROUPS: dict[str, tuple[int, ...]] = {"x": (2, 4, 3), "g": (4,), "b": (4,)}
INSTANCE: dict[str, tuple[int, ...]] = {"x": (2, 3, 5), "g": (3,), "b": (3,)}

TWINS = {
    "Sin": Twin("x.sin()", X),
    "Tanh": Twin("x.tanh()", X),
    "Exp": Twin("x.exp()", X),
    "Erf": Twin("x.erf()", X, kind=np.float32),
    "Atanh": Twin("x.atanh()", X, kind=np.float32, positive=True),
    "Log": Twin("x.log()", X, positive=True),
    "Sqrt": Twin("x.sqrt()", X, positive=True),
    "Sigmoid": Twin("x.sigmoid()", X),
    "Softplus": Twin("F.softplus(x)", X, kind=np.float32),
    "Mish": Twin("F.mish(x)", X, kind=np.float32),
    "Gelu": Twin("F.gelu(x, approximate='tanh')", X, {"approximate": "tanh"}, kind=np.float32),
    "Mul": Twin("a * b", PAIR),
    "Div": Twin("a / b", PAIR, positive=True),
    "Pow": Twin("a ** b", PAIR, positive=True),
    "Max": Twin("torch.maximum(a, b)", PAIR),
    "MatMul": Twin("a @ b", {"a": (2, 3, 4), "b": (4, 2)}),
    "Gemm": Twin(
        "0.5 * a.T @ b + 2 * c", {"a": (3, 2), "b": (3, 4), "c": (4,)}, {"transA": 1, "alpha": 0.5, "beta": 2.0}
    ),
    "Einsum": Twin("torch.einsum('ij,kj->ik', a, b)", {"a": (2, 3), "b": (4, 3)}, {"equation": "ij,kj->ik"}),
    "Softmax": Twin("x.softmax(-1)", X, {"axis": -1}),
    "LogSoftmax": Twin("x.log_softmax(0)", X, {"axis": 0}),
    "ReduceLogSumExp": Twin("x.logsumexp((0, 1), keepdim=True)", X),
    "ReduceL2": Twin("torch.linalg.vector_norm(x).reshape(1, 1)", X),
    "ReduceProd": Twin("x.prod().reshape(1, 1)", X, kind=np.float32),
    "CumSum": Twin("x.cumsum(1)", X, fixed={"axis": [1]}),
    "Gather": Twin("x[:, [2, 0, 2]]", X, {"axis": 1}, fixed={"i": [2, 0, 2]}),
    "Conv": Twin("F.conv1d(x, w, b, stride=2, padding=1)", CONV, {"strides": [2], "pads": [1, 1]}, kind=np.float32),
    "ConvTranspose": Twin("F.conv_transpose1d(x, w, b, stride=2)", TRANSPOSED, {"strides": [2]}, kind=np.float32),
    "MaxPool": Twin("F.max_pool1d(x, 2)", {"x": (1, 2, 6)}, {"kernel_shape": [2], "strides": [2]}),
    "AveragePool": Twin("F.avg_pool1d(x, 2)", {"x": (1, 2, 6)}, {"kernel_shape": [2], "strides": [2]}, kind=np.float32),
    "LayerNormalization": Twin("F.layer_norm(x, (4,), g, b)", NORM, {"epsilon": 1e-5}),
    "GroupNormalization": Twin("F.group_norm(x, 2, g, b)", GROUPS, {"num_groups": 2}, kind=np.float32),
    "InstanceNormalization": Twin("F.instance_norm(x, weight=g, bias=b)", INSTANCE, kind=np.float32),
}


def inputs_of(name: str, twin: Twin) -> tuple[dict[str, Array], dict[str, Array]]:
    """Values and tangents of the inputs."""
    rng = np.random.default_rng(len(name))
    low, high = (0.2, 0.9) if twin.positive else (-1.5, 1.5)
    values = {k: rng.uniform(low, high, shape).astype(twin.kind) for k, shape in twin.shapes.items()}
    return values, {k: rng.standard_normal(shape).astype(twin.kind) for k, shape in twin.shapes.items()}


def pushed(name: str, twin: Twin, values: dict[str, Array], tangents: dict[str, Array]) -> Array:
    """The tangent of y that the emitted model gives."""
    fixed = {k: np.asarray(v) for k, v in twin.fixed.items()}
    node = helper.make_node(name, [*values, *fixed], ["y"], **twin.attributes)
    element = TensorProto.FLOAT if twin.kind == np.float32 else TensorProto.DOUBLE
    primal = node_model(node, values, constants=fixed, outputs={"y": element}, opset=twin.opset)
    emitted = cfad.jvp(primal, wrt=list(values)).proto()
    return run_ort(emitted, {**values, **{f"{k}_tangent": t for k, t in tangents.items()}})["y_tangent"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # its forward mode scripts formulas
@pytest.mark.parametrize("name", TWINS)
def test_tangent_is_that_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    twin = TWINS[name]
    values, tangents = inputs_of(name, twin)

    def function(*inputs: Any) -> Any:
        known = {"torch": torch, "F": torch.nn.functional, **dict(zip(values, inputs, strict=True))}
        return eval(twin.torch, known)

    wide = [tuple(torch.tensor(a.astype(np.float64)) for a in part.values()) for part in (values, tangents)]
    _, expected = torch.func.jvp(function, *wide)
    found = pushed(name, twin, values, tangents)
    assert np.abs(expected.numpy()).max() > 1e-2
    tolerance = 1e-9 if twin.kind == np.float64 else 2e-5
    np.testing.assert_allclose(found, expected.numpy(), rtol=tolerance, atol=tolerance)
