"""RNN, GRU and LSTM as a Scan, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnx_cfad.model import load, normalise
from onnx_cfad.rewriters.decompose_operators import DecomposeOperatorsPass
from onnx_cfad.rewriters.expand_recurrent import RECURRENT
from onnx_cfad.rewriters.legalise import legalise_operators
from tests.rewriters.check_pass import Feeds, operators, run

STEPS, SEQUENCES, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONAL = {"LSTM": ("b", "l", "h", "c", "p"), "GRU": ("b", "l", "h"), "RNN": ("b", "l", "h")}


def recurrent(
    kind: str, direction: str, given: tuple[str, ...] = (), outputs: tuple[str, ...] = ("y", "yh"), **attributes: Any
) -> tuple[onnx.ModelProto, Feeds]:
    """A model of one operator with some of its optional inputs; one of its sequences has no steps."""
    rng = np.random.default_rng(1)
    ways, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    shapes = {
        "x": (STEPS, SEQUENCES, INPUTS), "w": (ways, gates * HIDDEN, INPUTS), "r": (ways, gates * HIDDEN, HIDDEN),
        "b": (ways, 2 * gates * HIDDEN), "h": (ways, SEQUENCES, HIDDEN), "c": (ways, SEQUENCES, HIDDEN),
        "p": (ways, 3 * HIDDEN),
    }  # fmt: skip
    names = [n if n in ("x", "w", "r", *given) else "" for n in ("x", "w", "r", *OPTIONAL[kind])]
    feeds: Feeds = {
        n: np.array([5, 2, 0], np.int32) if n == "l" else rng.standard_normal(shapes[n]).astype(np.float32)
        for n in names
        if n
    }
    for name in ("activations", "activation_alpha", "activation_beta"):  # the same in both directions
        if name in attributes:
            attributes[name] = attributes[name] * ways
    node = helper.make_node(kind, names, outputs, direction=direction, hidden_size=HIDDEN, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n]
    graph = helper.make_graph([node], "recurrent", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), feeds


def assert_expands(proto: onnx.ModelProto, feeds: Feeds, kind: str) -> ir.Model:
    model = legalise_operators(normalise(load(proto)), "relax")
    assert kind not in operators(model)
    assert "Scan" in operators(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    for found, expected in zip(run(after, feeds), run(proto, feeds), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return model


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_directions_with_and_without_optional_inputs(kind: str, direction: str, flag: int) -> None:
    named = {"LSTM": {"input_forget": flag}, "GRU": {"linear_before_reset": flag}, "RNN": {}}[kind]
    outputs = ("y", "yh", "yc") if kind == "LSTM" else ("y", "yh")
    for given in ((), ("b",), OPTIONAL[kind]):
        assert_expands(*recurrent(kind, direction, given, outputs, **named), kind)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", {"clip": 0.3}),
        ("GRU", {"clip": 0.3}),
        ("RNN", {"clip": 0.3}),
        ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Relu"], "activation_alpha": [0.1]}),
        ("GRU", {"activations": ["sigmoid", "ScaledTanh"], "activation_alpha": [0.7], "activation_beta": [1.3]}),
        ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}),
        ("RNN", {"activations": ["Elu"], "activation_alpha": [0.9]}),
    ],
)  # fmt: skip
def test_clip_and_activations(kind: str, attributes: dict[str, Any]) -> None:
    assert_expands(*recurrent(kind, "bidirectional", ("b",), ("y",), **attributes), kind)


def test_outputs_that_are_left_out() -> None:
    assert_expands(*recurrent("LSTM", "forward", ("b",), ("", "yh")), "LSTM")
    assert_expands(*recurrent("LSTM", "forward", ("b",), ("", "", "yc")), "LSTM")


def test_activation_that_onnx_has_not_stays() -> None:
    proto, _ = recurrent("RNN", "forward", activations=["Sine"])
    model = normalise(load(proto))
    assert not DecomposeOperatorsPass(RECURRENT)(model).modified


def test_steps_of_symbolic_length() -> None:
    proto, feeds = recurrent("LSTM", "reverse", ("b", "l"), ("y", "yh", "yc"))
    shape = proto.graph.input[0].type.tensor_type.shape
    shape.dim[0].dim_param, shape.dim[1].dim_param = "steps", "sequences"
    assert_expands(proto, feeds, "LSTM")
