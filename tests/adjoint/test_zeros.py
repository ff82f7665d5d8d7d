"""The gradient by weights of the branch that was not taken is exactly zero, whatever their shapes have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import check_emitted, run_ort

SHAPES = [(40, 30), (40, 30), (20, 30), (30, 50), (50, 40), (0, 4), (300,), (300,), (3,), ()]
RNG = np.random.default_rng(0)


def _model(shapes: list[tuple[int, ...]]) -> onnx.ModelProto:
    """The then-branch reads a tensor of each shape, the else-branch none."""
    names = [f"w{k}" for k in range(len(shapes))]
    sums = [helper.make_node("ReduceSum", [name], [f"s{name}"], keepdims=0) for name in names]
    total = helper.make_node("Sum", [f"s{name}" for name in names], ["then_y"])
    scalar = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [])  # noqa: E731
    then = helper.make_graph([*sums, total], "then", [], [scalar("then_y")])
    otherwise = helper.make_graph([helper.make_node("Sin", ["x"], ["else_y"])], "else", [], [scalar("else_y")])
    branch = helper.make_node("If", ["p"], ["loss"], then_branch=then, else_branch=otherwise)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    inputs += [scalar("x"), helper.make_tensor_value_info("p", TensorProto.BOOL, [])]
    graph = helper.make_graph([branch], "weights", inputs, [scalar("loss")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _feeds(shapes: list[tuple[int, ...]], *, taken: bool) -> dict[str, Any]:
    feeds = {f"w{k}": np.asarray(RNG.standard_normal(s), np.float32) for k, s in enumerate(shapes)}
    return {**feeds, "x": np.asarray(0.3, np.float32), "p": np.asarray(taken)}


@pytest.mark.parametrize("taken", [True, False])
def test_gradients_of_both_branches(taken: bool) -> None:
    names = [f"w{k}" for k in range(len(SHAPES))]
    emitted = cfad.grad(_model(SHAPES), loss="loss", wrt=[*names, "x"]).proto()
    check_emitted(emitted)
    found = run_ort(emitted, _feeds(SHAPES, taken=taken))
    for name, shape in zip(names, SHAPES, strict=True):
        np.testing.assert_array_equal(found[f"{name}_grad"], np.full(shape, float(taken), np.float32))
    expected = 0.0 if taken else np.cos(np.float32(0.3))
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-6)


def test_zeros_of_many_weights_are_parts_of_one_tensor() -> None:
    shapes = [(40, 30)] * 6
    emitted = cfad.grad(_model(shapes), loss="loss", wrt=[f"w{k}" for k in range(6)]).proto()
    (reverse,) = [node for node in emitted.graph.node if node.op_type == "If" and len(node.output) == 6]
    (otherwise,) = [a.g for a in reverse.attribute if a.name == "else_branch"]
    assert [node.op_type for node in otherwise.node] == ["Split"]
    assert not otherwise.initializer


def test_zeros_of_large_weights_are_not_kept() -> None:
    shapes = [(400, 400)] * 2
    emitted = cfad.grad(_model(shapes), loss="loss", wrt=["w0", "w1"]).proto()
    kinds = {node.op_type for n in emitted.graph.node for a in n.attribute for node in a.g.node}
    assert "Split" not in kinds
