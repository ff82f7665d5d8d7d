"""Nodes that are not made as their operator's specification says are refused when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import NodeProto, TensorProto, helper

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.model import load
from tests.onnx_text import LOOP, LOSS, model

Change = Callable[[NodeProto], object]


def drop_attribute(name: str) -> Change:
    def change(node: NodeProto) -> None:
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        assert len(kept) < len(node.attribute)
        del node.attribute[:]
        node.attribute.extend(kept)

    return change


def set_attribute(name: str, value: object) -> Change:
    def change(node: NodeProto) -> None:
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def rename(op_type: str) -> Change:
    return lambda node: setattr(node, "op_type", op_type)


TENSOR = helper.make_tensor("t", TensorProto.FLOAT, [], [1.0])

# For each change: the operator of the node in LOOP that is changed, the change, and what the message says.
CHANGES: dict[str, tuple[str, Change, str]] = {
    "a Constant without a value": ("Constant", drop_attribute("value"), "exactly one attribute, this one has 0"),
    "a Constant with two values": ("Constant", set_attribute("value_int", 1), "exactly one attribute, this one has 2"),
    "a Constant with two outputs": ("Constant", lambda n: n.output.append("more"), "it has 2 outputs"),
    "an attribute of another type": ("Constant", set_attribute("value", 1.0), "is of type FLOAT, expected TENSOR"),
    "an attribute of another operator": ("Tanh", set_attribute("alpha", 1.0), "has no attribute 'alpha'"),
    "an attribute that is missing": ("Tanh", rename("Cast"), "it has no to, an attribute that must be there"),
    "a Loop without a body": ("Loop", drop_attribute("body"), "it has no body"),
    "a Loop whose body is a tensor": ("Loop", set_attribute("body", TENSOR), "is of type TENSOR, expected GRAPH"),
    "an If without a branch": ("If", drop_attribute("else_branch"), "it has no else_branch"),
    "an input too few": ("Mul", lambda n: n.input.pop(), "it has 1 inputs, its operator has 2"),
    "an input too many": ("Tanh", lambda n: n.input.append("p"), "it has 2 inputs, its operator has 1"),
    "an input that is absent": ("Mul", lambda n: n.input.__setitem__(0, ""), r"its input 0 \(A\) is absent"),
    "a carry that is absent": ("Loop", lambda n: n.input.__setitem__(2, ""), r"its input 2 \(v_initial\) is absent"),
    "an output too many": ("Sin", lambda n: n.output.append("more"), "it has 2 outputs, its operator has 1"),
    "an operator of another opset": ("Tanh", rename("RotaryEmbedding"), "opset 21, which the model imports"),
    "no operator": ("Tanh", rename(""), "it has no operator"),
}


def changed(op_type: str, change: Change) -> onnx.ModelProto:
    proto = model(LOOP)
    graphs, nodes = [proto.graph], list[NodeProto]()
    for graph in graphs:
        nodes += graph.node
        graphs += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    change(next(node for node in nodes if node.op_type == op_type))
    return proto


@pytest.mark.parametrize("what", CHANGES)
def test_a_node_that_does_not_fit_its_operator_is_refused_where_it_is(what: str) -> None:
    op_type, change, message = CHANGES[what]
    with pytest.raises(ModelError, match=message) as caught:
        load(changed(op_type, change))
    assert caught.value.where.startswith("main/")
    if op_type in ("Tanh", "Sin"):
        assert caught.value.where.startswith("main/Loop/body/If/")


def test_operators_of_other_domains_are_left_alone() -> None:
    def change(node: NodeProto) -> None:
        node.domain, node.op_type = "com.example", "Anything"
        node.input.append("p")

    proto = changed("Tanh", change)
    proto.opset_import.add(domain="com.example", version=1)
    load(proto)


def test_a_local_function_may_be_called_like_an_operator() -> None:
    load(onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "own": 1]> m (float[3] x) => (float[3] y) { y = own.Tanh (x, x) }'
        '<domain: "own", opset_import: ["": 21]> Tanh (a, b) => (c) { c = Mul (a, b) }'
    ))  # fmt: skip


def test_two_functions_of_one_name_are_refused() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "own": 1]> m (float[3] x) => (float[3] y) { y = own.f (x) }'
        '<domain: "own", opset_import: ["": 21]> f (a) => (b) { b = Sin (a) }'
        '<domain: "own", opset_import: ["": 21]> f (a) => (b) { b = Cos (a) }'
    )
    with pytest.raises(ModelError, match="function own::f: it is defined 2 times"):
        load(proto)


def test_an_input_without_an_element_type_is_refused() -> None:
    proto = model(LOSS)
    proto.graph.input[0].type.Clear()
    with pytest.raises(ModelError, match="input 'x': it is declared without an element type"):
        load(proto)


ILL_TYPED = {
    "two types": (
        "m (float[3] x, double[3] z) => (float[3] y) { y = Add (x, z) }",
        r"main/Add: its inputs 0 and 1 have to be of one type, found tensor\(float\) and tensor\(double\)",
    ),
    "a type that the operator does not take": (
        "m (bool[3] x, float[3] z) => (float[3] y) { a = Cast <to = 9> (z) y = Sin (a) }",
        r"main/Sin: its input 0 is a tensor\(bool\), expected tensor\(",
    ),
}


@pytest.mark.parametrize("what", ILL_TYPED)
def test_operands_of_the_wrong_type_are_refused(what: str) -> None:
    text, message = ILL_TYPED[what]
    with pytest.raises(ModelError, match=message):
        cfad.vjp(model(text))


def test_operands_of_a_wrong_rank_are_blamed_on_the_node() -> None:
    """No check foresees this: what a rule stumbles over becomes a message that keeps its cause."""
    proto = model("m (float s, int64[2] i) => (float[N] y) { y = Gather <axis = 0> (s, i) }")
    with pytest.raises(
        ModelError, match="main/Gather: its VJP rule fails .*: its operands do not fit Gather"
    ) as caught:
        cfad.vjp(proto)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("differentiate", [cfad.vjp, cfad.jvp])
def test_a_declared_size_beyond_all_bounds_is_no_constant(differentiate: Callable[..., cfad.Gradient]) -> None:
    """The product of the dimensions is 0 in 64 bits."""
    size = 2**62
    proto = model(f"m (float[{size},4] x) => (float[{size},4] y) {{ y = Ceil (x) }}")
    onnx.checker.check_model(differentiate(proto).proto(), full_check=True)


def test_dimensions_of_any_name_are_read_before_bodies_are_written_out() -> None:
    attention = onnx.parser.parse_model(
        '<ir_version: 12, opset_import: ["": 24, "ai.onnx.preview": 1]>'
        "m (float[B,2,3,4] q, float[B,2,3,4] k, float[B,2,3,4] v) => (float[B,2,3,4] y)"
        "{ y = ai.onnx.preview.FlexAttention (q, k, v) }"
    )
    for value in (*attention.graph.input, *attention.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "/Loop dim 0"
    cfad.plan(attention)
