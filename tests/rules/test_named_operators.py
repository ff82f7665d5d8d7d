"""The operators that the package promises by name: each has a way, and each way is tested, in both modes and orders."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnx_cfad.report.operators import Operator, operators
from onnx_cfad.report.second_order import ORDER_TWO
from onnx_cfad.rules.registry import NoDerivative, Rule
from tests.rules.second_order import assert_second_order

ROOT = pathlib.Path(__file__).parents[2]
PROMISED: tuple[str, ...] = tuple(
    """
    Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Attention AveragePool BatchNormalization Cast CastLike
    CausalConvWithState Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Conv ConvTranspose Cos Cosh
    CumProd CumSum DFT DeformConv DepthToSpace DequantizeLinear Det Div Dropout Einsum Elu Erf Exp Expand Flatten GRU
    Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization
    HardSigmoid HardSwish Identity If InstanceNormalization LRN LSTM LayerNormalization LeakyRelu LinearAttention Log
    LogSoftmax Loop LpNormalization LpPool MatMul Max MaxPool MaxRoiPool MaxUnpool Mean MeanVarianceNormalization Min
    Mish Mod Mul Neg NegativeLogLikelihoodLoss Optional OptionalGetElement PRelu Pad Pow RMSNormalization RNN Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding STFT Scan ScatterElements ScatterND
    Selu SequenceAt SequenceConstruct SequenceErase SequenceInsert SequenceMap Shrink Sigmoid Sin Sinh Slice Softmax
    SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum SwiGLU Swish Tan
    Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where
""".split()  # noqa: SIM905
)
ZERO = ("Ceil", "Floor", "QuantizeLinear", "Round", "Sign")
"""Zero unless a straight-through estimator is asked for."""

ELSEWHERE = {  # no rule of their own, and the tests that differentiate them twice
    "If": "tests/adjoint/test_any_order.py",
    "LinearAttention": "tests/rules/test_named_operators.py",
    "Loop": "tests/adjoint/test_any_order.py",
    "Scan": "tests/adjoint/test_any_order.py",
    "SequenceMap": "tests/rules/test_named_operators.py",
}
KNOWN = {operator.name: operator for operator in operators()}


def way_of(operator: Operator) -> str:
    if isinstance(operator.entry, Rule):
        return "body" if operator.by_body else "rule"
    return "none" if isinstance(operator.entry, NoDerivative) else "elsewhere" if operator.has_way else "missing"


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_operator_has_a_way_that_is_tested_twice(name: str) -> None:
    assert way_of(KNOWN[name]) in (("elsewhere",) if name in ELSEWHERE else ("rule", "body"))
    assert name in ORDER_TWO or name in ELSEWHERE


@pytest.mark.parametrize("name", ZERO)
def test_the_rounding_family_is_zero_for_a_reason(name: str) -> None:
    entry = KNOWN[name].entry
    assert isinstance(entry, NoDerivative)
    assert "constant" in entry.reason


def test_no_skip_is_left_over() -> None:
    assert set(ELSEWHERE) == {name for name in PROMISED if name not in ORDER_TWO}
    for name, path in ELSEWHERE.items():
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")), (name, path)


def test_linear_attention_twice() -> None:
    """In float32, which is what the operator takes."""
    rng = np.random.default_rng(5)
    feeds = {name: 0.6 * rng.standard_normal((1, 3, 2)) for name in "qkv"}
    feeds |= {"decay": -np.abs(rng.standard_normal((1, 3, 1))), "beta": rng.uniform(0.2, 0.9, (1, 3, 1))}
    narrow = {name: array.astype(np.float32) for name, array in feeds.items()}
    node = helper.make_node(
        "LinearAttention", ["q", "k", "v", "", "decay", "beta"], ["y", "state"], kv_num_heads=1, q_num_heads=1
    )
    types = {"y": TensorProto.FLOAT, "state": TensorProto.FLOAT}
    how: Any = {"outputs": types, "seeded": ["y"], "opset": 27, "step": 1e-2}
    assert_second_order(node, narrow, wrt=list(feeds), rtol=2e-3, atol=2e-3, **how)


def test_sequence_map_twice() -> None:
    element = helper.make_tensor_value_info("e", TensorProto.DOUBLE, None)
    result = helper.make_tensor_value_info("o", TensorProto.DOUBLE, None)
    squared = [helper.make_node("Mul", ["e", "e"], ["s"]), helper.make_node("Mul", ["s", "w"], ["p"])]
    body = helper.make_graph([*squared, helper.make_node("Tanh", ["p"], ["o"])], "body", [element], [result])
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["sequence"]),
        helper.make_node("SequenceMap", ["sequence"], ["mapped"], body=body),
        helper.make_node("ConcatFromSequence", ["mapped"], ["y"], axis=0),
    ]
    rng = np.random.default_rng(6)
    feeds = {name: 0.6 * rng.standard_normal((2, 3)) for name in ("a", "b", "w")}
    assert_second_order(nodes, feeds, wrt=["a", "b", "w"])
