"""Gradient and optimiser nodes of ai.onnx.preview.training: onnx's own examples, closed forms, differences."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.backend.test.case import model as model_cases
from onnx.backend.test.case import node as node_cases

import onnx_cfad as cfad
from tests.oracle import assert_vjp, check_emitted, run_ort, run_reference

HEADER = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>'
TRAINING = ("test_adagrad", "test_adam", "test_momentum", "test_nesterov")


def expanded(model: onnx.ModelProto | str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"{HEADER} {model}") if isinstance(model, str) else model
    result = ir.to_proto(cfad.expand(proto))
    check_emitted(result)
    assert {o.domain for o in result.opset_import} == {""}
    return result


def examples() -> list[Any]:
    """The cases of four modules alone: importing one makes its cases, and all of them take half a minute."""
    for name in ("node.adagrad", "node.adam", "node.momentum", "model.gradient"):
        importlib.import_module(f"onnx.backend.test.case.{name}")
    cases: list[Any] = [*node_cases._NodeTestCases, *model_cases._SimpleModelTestCases]
    return sorted((c for c in cases if c.name.startswith((*TRAINING, "test_gradient"))), key=lambda case: case.name)


@pytest.mark.parametrize("example", examples(), ids=lambda case: case.name)
def test_example_of_the_specification(example: Any) -> None:
    model = onnx.ModelProto.FromString(example.model.SerializeToString())
    model.ir_version = 10
    for inputs, outputs in example.data_sets:
        feeds = dict(zip([i.name for i in model.graph.input], inputs, strict=True))
        found = run_ort(expanded(model), feeds)
        for name, expected in zip([o.name for o in model.graph.output], outputs, strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def test_there_are_examples_of_every_operator() -> None:
    names = " ".join(case.name for case in examples())
    assert all(word in names for word in ("adagrad", "adam", "momentum", "nesterov", "gradient_of_add"))


OPTIMISERS: dict[str, tuple[int, dict[str, Any]]] = {
    "Adagrad": (1, {"norm_coefficient": 0.1, "decay_factor": 0.2, "epsilon": 1e-3}),
    "Adam": (2, {"norm_coefficient": 0.1, "norm_coefficient_post": 0.05, "epsilon": 1e-3}),
    "Momentum": (1, {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.1, "mode": "nesterov"}),
}


@pytest.mark.parametrize(("op_type", "count"), [*itertools.product(OPTIMISERS, (0, 3))])
def test_optimisers_are_differentiated(op_type: str, count: int) -> None:
    """Against differences of the expanded model, whose values are those of the reference evaluator."""
    states, attributes = OPTIMISERS[op_type]
    rng = np.random.default_rng(3)
    groups = ["x", "g", *("s", "t")[:states]]
    tensors = {f"{name}{k}": np.abs(rng.normal(size=3)) + 0.1 for name in groups for k in (1, 2)}
    names = ["r", "n", *tensors]
    outputs = [f"{name}{k}_new" for name in groups if name != "g" for k in (1, 2)]
    node = helper.make_node(op_type, names, outputs, domain="ai.onnx.preview.training", **attributes)
    feeds = {"r": np.array(0.1), "n": np.array(count), **tensors}
    ports = [helper.make_tensor_value_info("r", 11, []), helper.make_tensor_value_info("n", 7, [])]
    ports += [helper.make_tensor_value_info(name, 11, [3]) for name in tensors]
    graph = helper.make_graph([node], "step", ports, [helper.make_tensor_value_info(n, 11, [3]) for n in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    plain = expanded(model)
    for name, value in run_reference(model, feeds).items():
        np.testing.assert_allclose(run_ort(plain, feeds)[name], value, rtol=1e-6)
    assert_vjp(plain, feeds, wrt=["r", *tensors], rtol=1e-5)
    direct = cfad.vjp(model).proto()
    check_emitted(direct)


X, W = np.array([0.3, -0.7, 1.1]), np.array([1.5, 0.2, -0.4])


def test_gradient_of_a_tensor_with_other_inputs_held() -> None:
    text = """m (double[3] x, double[3] w) => (double[3] y, double[3] dx) {
        h = Mul (x, w)  y = Sin (h)
        dx = ai.onnx.preview.training.Gradient <xs = ["x"], zs = ["w"], y = "y"> (x, w)
    }"""
    model = expanded(text)
    found = run_ort(model, {"x": X, "w": W})
    np.testing.assert_allclose(found["dx"], W * np.cos(X * W))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Sin") == 1, "the node's inputs are what it names: the forward pass is not repeated"


def test_gradient_at_another_point() -> None:
    text = """m (double[3] x, double[3] w, double[3] x1) => (double[3] y, double[3] dx, double[3] dw) {
        h = Mul (x, w)  y = Sin (h)
        dx, dw = ai.onnx.preview.training.Gradient <xs = ["x", "w"], y = "y"> (x1, w)
    }"""
    point = np.array([2.0, 0.1, -0.3])
    found = run_ort(expanded(text), {"x": X, "w": W, "x1": point})
    np.testing.assert_allclose(found["y"], np.sin(X * W))
    np.testing.assert_allclose(found["dx"], W * np.cos(point * W))
    np.testing.assert_allclose(found["dw"], point * np.cos(point * W))


def test_gradient_by_an_intermediate_tensor_and_a_skipped_output() -> None:
    text = """m (double[3] x, double[3] w) => (double[3] y, double[3] dh) {
        h = Mul (x, w)  y = Exp (h)
        , dh = ai.onnx.preview.training.Gradient <xs = ["w", "h"], y = "y"> (w, h)
    }"""
    found = run_ort(expanded(text), {"x": X, "w": W})
    np.testing.assert_allclose(found["dh"], np.exp(X * W))


def test_second_derivative_by_a_gradient_of_a_gradient() -> None:
    text = """m (double[3] x) => (double[3] y, double[3] d1, double[3] d2) {
        y = Sin (x)
        d1 = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
        d2 = ai.onnx.preview.training.Gradient <xs = ["x"], y = "d1"> (x)
    }"""
    found = run_ort(expanded(text), {"x": X})
    np.testing.assert_allclose(found["d1"], np.cos(X))
    np.testing.assert_allclose(found["d2"], -np.sin(X))


LOOP = """m (double[3] x, double[3] w, int64 n) => (double[3] y) {
    y = Loop (n, , x) <body = b (int64 i, bool c, double[3] h) => (bool go, double[3] new) {
        go = Identity (c)
        p = Mul (h, w)  e = Sin (p)
        d = ai.onnx.preview.training.Gradient <xs = ["h"], zs = ["w"], y = "e"> (h, w)
        s = Mul (d, d)
        new = Sub (h, s)
    }>
}"""


def test_gradient_inside_a_loop_is_descent_and_is_differentiated() -> None:
    feeds = {"x": X, "w": W, "n": np.array(4)}
    model = expanded(LOOP)
    h = X
    for _ in range(4):
        h = h - (W * np.cos(h * W)) ** 2
    np.testing.assert_allclose(run_ort(model, feeds)["y"], h)
    assert_vjp(model, feeds, wrt=["x", "w"])
    direct = cfad.vjp(onnx.parser.parse_model(f"{HEADER} {LOOP}"), wrt=["x", "w"]).proto()
    check_emitted(direct)
    seeds = {**feeds, "y_grad": np.ones(3)}
    again = run_ort(cfad.vjp(model, wrt=["x", "w"]).proto(), seeds)
    for name in ("x_grad", "w_grad"):
        np.testing.assert_allclose(run_ort(direct, seeds)[name], again[name])


def test_gradient_through_a_loop() -> None:
    text = """m (double[3] x, double[3] w, int64 n) => (double[3] y, double[3] dx, double[3] dw) {
        y = Loop (n, , x) <body = b (int64 i, bool c, double[3] h) => (bool go, double[3] new)
            { go = Identity (c)  new = Mul (h, w) }>
        dx, dw = ai.onnx.preview.training.Gradient <xs = ["x", "w"], y = "y"> (x, w)
    }"""
    found = run_ort(expanded(text), {"x": X, "w": W, "n": np.array(3)})
    np.testing.assert_allclose(found["dx"], W**3)
    np.testing.assert_allclose(found["dw"], 3 * W**2 * X)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ('<xs = ["x"], y = "nowhere"> (x)', "names the tensor 'nowhere'"),
        ('<xs = ["x", "w"], y = "y"> (x)', "1 inputs, expected 2"),
    ],
)
def test_what_does_not_fit_is_refused(node: str, message: str) -> None:
    call = f"d = ai.onnx.preview.training.Gradient {node}"
    text = f"m (double[3] x, double[3] w) => (double[3] y, double[3] d) {{ y = Mul (x, w) {call} }}"
    with pytest.raises(cfad.ModelError, match=message):
        expanded(text)


def test_command_line_writes_the_expanded_model(tmp_path: Any) -> None:
    from typer.testing import CliRunner

    from onnx_cfad.cli import app

    path = tmp_path / "descent.onnx"
    onnx.save(onnx.parser.parse_model(f"{HEADER} {LOOP}"), path)
    result = CliRunner().invoke(app, ["expand", str(path)])
    assert result.exit_code == 0, result.output
    check_emitted(onnx.load(tmp_path / "descent.expanded.onnx"))
    over = CliRunner().invoke(app, ["expand", str(path), "-o", str(path)])
    assert over.exit_code == 2
    assert "input" in over.output
