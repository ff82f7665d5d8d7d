"""Lowered operators give what the operator gives, by the reference evaluator in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_cfad.numeric.lower import lower
from tests.execution import operators, run_in_onnxruntime, run_in_reference

Array = np.ndarray[Any, Any]


def model_of(node: onnx.NodeProto, feeds: dict[str, Array], constants: dict[str, Array], opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, [f"{n}{k}" for k in range(a.ndim)])
        for n, a in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)]
    initializers = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    held = ir.from_proto(model)
    lower(held)
    return ir.to_proto(held)


CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("line", (2, 3, 9), (4, 3, 3), {}),
    ("plane", (2, 3, 6, 7), (4, 3, 3, 2), {}),
    ("volume", (1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {}),
    ("padded", (2, 3, 6, 7), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}),
    ("strided", (2, 3, 7, 8), (4, 3, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ("strided_unevenly", (1, 1, 8, 8), (1, 1, 3, 3), {"strides": [2, 2]}),
    ("dilated", (2, 3, 9, 9), (4, 3, 2, 3), {"dilations": [3, 2]}),
    ("grouped", (2, 6, 5, 5), (4, 3, 3, 3), {"group": 2}),
    ("depthwise", (2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ("valid", (2, 3, 6, 6), (4, 3, 3, 3), {"auto_pad": "VALID"}),
    ("same_upper", (2, 3, 6, 6), (4, 3, 2, 4), {"auto_pad": "SAME_UPPER"}),
    ("same_lower", (2, 3, 6, 6), (4, 3, 2, 4), {"auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attributes"), [c[1:] for c in CONVOLUTIONS], ids=[c[0] for c in CONVOLUTIONS])
def test_convolution(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], bias: bool, opset: int
) -> None:
    rng = np.random.default_rng(0)
    feeds, constants = {"x": rng.standard_normal(x)}, {"w": rng.standard_normal(w)}
    if bias:
        constants["b"] = rng.standard_normal(w[0])
    model = model_of(helper.make_node("Conv", ["x", *constants], ["y"], **attributes), feeds, constants, opset)
    result = lowered(model)
    assert "Conv" not in operators(result)
    expected = run_in_reference(model, feeds)["y"]
    np.testing.assert_allclose(run_in_onnxruntime(result, feeds)["y"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("opset", [13, 18])
def test_instance_normalization(opset: int) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3, 4, 5)) + 2}
    constants = {"s": rng.standard_normal(3), "b": rng.standard_normal(3)}
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"], epsilon=1e-3)
    model = model_of(node, feeds, constants, opset)
    result = lowered(model)
    assert "InstanceNormalization" not in operators(result)
    expected = run_in_reference(model, feeds)["y"]
    np.testing.assert_allclose(run_in_onnxruntime(result, feeds)["y"], expected, rtol=1e-7)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)])
def test_global_average_pool(shape: tuple[int, ...], opset: int) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(shape)}
    model = model_of(helper.make_node("GlobalAveragePool", ["x"], ["y"]), feeds, {}, opset)
    result = lowered(model)
    assert "GlobalAveragePool" not in operators(result)
    found = run_in_onnxruntime(result, feeds)["y"]
    assert found.shape == (2, 3, *[1] * (len(shape) - 2))
    np.testing.assert_allclose(found, run_in_reference(model, feeds)["y"], rtol=1e-12)


def test_convolution_that_is_not_known_stays() -> None:
    feeds = {"x": np.zeros((1, 1, 4)), "w": np.zeros((1, 1, 2))}
    symbolic = model_of(helper.make_node("Conv", ["x", "w"], ["y"]), feeds, {}, 18)
    assert operators(lowered(symbolic)) == {"Conv"}
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2])
    assert operators(lowered(model_of(node, {"x": feeds["x"]}, {"w": feeds["w"]}, 18))) == {"Conv"}
