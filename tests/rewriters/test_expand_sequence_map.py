"""SequenceMap as a Loop: the same values in ONNX Runtime, and a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnx_cfad.rewriters.expand_sequence_map import ExpandSequenceMapPass
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort

RNG = np.random.default_rng(10)


def tensor(name: str, elem: int = DOUBLE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, None)


def expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    converted = ir.from_proto(model)
    assert ExpandSequenceMapPass()(converted).modified
    assert not ExpandSequenceMapPass()(converted).modified
    return ir.to_proto(converted)


def model_of(body: onnx.GraphProto, inputs: list[str], outputs: int = 1) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model that maps ``body`` over the sequence of a and b and joins the mapped sequences."""
    names = [f"t{k}" for k in range(outputs)]
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceConstruct", ["c", "a"], ["r"]),
        helper.make_node("SequenceMap", inputs, names, body=body),
        *(helper.make_node("ConcatFromSequence", [name], [f"{name}_joined"], axis=0) for name in names),
        helper.make_node("Concat", [f"{name}_joined" for name in names], ["y_whole"], axis=0),
        helper.make_node("Reshape", ["y_whole", "flat"], ["y"]),
    ]
    feeds = {name: np.asarray(RNG.standard_normal((2, 3))) for name in ("a", "b", "c")}
    feeds["w"] = np.asarray(RNG.standard_normal(3))
    return node_model(nodes, feeds, constants={"flat": np.array([-1])}, outputs={"y": DOUBLE}), feeds


def bodies() -> dict[str, tuple[onnx.GraphProto, list[str], int]]:
    mul = helper.make_node("Mul", ["e", "v"], ["m"])
    tanh = helper.make_node("Tanh", ["m"], ["o"])
    captures = [helper.make_node("Mul", ["e", "w"], ["m"]), tanh]
    pair = [mul, tanh, helper.make_node("Sin", ["e"], ["p"])]
    two = [tensor("e"), tensor("v")]
    return {
        "tensor": (helper.make_graph([mul, tanh], "body", two, [tensor("o")]), ["s", "w"], 1),
        "two-sequences": (helper.make_graph([mul, tanh], "body", two, [tensor("o")]), ["s", "r"], 1),
        "captured": (helper.make_graph(captures, "body", [tensor("e")], [tensor("o")]), ["s"], 1),
        "two-results": (helper.make_graph(pair, "body", two, [tensor("o"), tensor("p")]), ["s", "w"], 2),
        "unchanged": (helper.make_graph([], "body", [tensor("e")], [tensor("e")]), ["s"], 1),
    }


@pytest.mark.parametrize("name", list(bodies()))
def test_values_are_kept_and_differentiable(name: str) -> None:
    model, feeds = model_of(*bodies()[name])
    result = expanded(model)
    np.testing.assert_array_equal(run_ort(result, feeds)["y"], run_ort(model, feeds)["y"])
    assert_vjp(result, feeds)


def test_inside_a_branch() -> None:
    body, inputs, _ = bodies()["tensor"]
    then = [helper.make_node("SequenceMap", inputs, ["t"], body=body)]
    orelse = [helper.make_node("Identity", ["s"], ["u"])]
    branches = [
        helper.make_graph(nodes, name, [], [helper.make_tensor_sequence_value_info(result, DOUBLE, None)])
        for nodes, name, result in ((then, "then", "t"), (orelse, "else", "u"))
    ]
    nodes = [
        helper.make_node("SequenceConstruct", ["a"], ["s"]),
        helper.make_node("If", ["c"], ["q"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("ConcatFromSequence", ["q"], ["y_whole"], axis=0),
        helper.make_node("Reshape", ["y_whole", "flat"], ["y"]),
    ]
    feeds = {"a": np.asarray(RNG.standard_normal((2, 3))), "w": np.asarray(RNG.standard_normal(3)), "c": np.array(True)}
    model = node_model(nodes, feeds, constants={"flat": np.array([-1])}, outputs={"y": DOUBLE})
    result = expanded(model)
    np.testing.assert_array_equal(run_ort(result, feeds)["y"], run_ort(model, feeds)["y"])
    assert_vjp(result, feeds, wrt=["a", "w"])
