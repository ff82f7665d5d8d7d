"""A converted model computes what the original computes in ONNX Runtime, wherever its nodes are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_cfad.errors import ModelError
from onnx_cfad.model import load, normalise
from tests.opset_cases import CASES, I64, IMAGE, LARGER, Array, Case, X, random
from tests.oracle import run_ort


def _typed(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _untyped(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    return [onnx.ValueInfoProto(name=name) for name in names]


def _in_main(node: onnx.NodeProto, _: Sequence[str]) -> list[onnx.NodeProto]:
    return [node]


def _in_branch(node: onnx.NodeProto, results: Sequence[str]) -> list[onnx.NodeProto]:
    """The node in the branch that is taken; the other one gives zeros."""
    inner = [f"{name}.then" for name in results]
    del node.output[:]
    node.output.extend(inner)
    zeros = [helper.make_node("Sub", [name, name], [f"{name}.zero"]) for name in inner]
    then = helper.make_graph([node], "then", [], _untyped(inner))
    again = onnx.NodeProto()
    again.CopyFrom(node)
    orelse = helper.make_graph([again, *zeros], "else", [], _untyped([zero.output[0] for zero in zeros]))
    return [helper.make_node("If", ["yes"], results, then_branch=then, else_branch=orelse)]


def _in_loop(node: onnx.NodeProto, results: Sequence[str]) -> list[onnx.NodeProto]:
    """The node in the body of a Loop that runs twice, inside a branch; its outputs are stacked."""
    inner = [f"{name}.step" for name in results]
    del node.output[:]
    node.output.extend(inner)
    keep = helper.make_node("Identity", ["going"], ["going.next"])
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [])
    going = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    count = helper.make_tensor_value_info("count", TensorProto.INT64, [])
    twice = helper.make_node("Add", ["count", "count"], ["count.next"])
    names = ["going.next", "count.next", *inner]
    body = helper.make_graph([keep, twice, node], "body", [index, going, count], _untyped(names))
    stacked = [f"{name}.stacked" for name in results]
    loop = helper.make_node("Loop", ["two", "yes", "two"], ["count.last", *stacked], body=body)
    branches = [helper.make_graph([loop], side, [], _untyped(stacked)) for side in ("then", "else")]
    return [helper.make_node("If", ["yes"], results, then_branch=branches[0], else_branch=branches[1])]


PLACES = {"main": _in_main, "branch": _in_branch, "loop": _in_loop}


def _model(case: Case, place: str) -> onnx.ModelProto:
    fed = [f"x{index}" for index in range(len(case.fed))]
    constants = [f"c{index}" if c is not None else "" for index, c in enumerate(case.constants)]
    results = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op_type, [*fed, *constants], results, name="it", **case.attributes)
    initializers = [
        numpy_helper.from_array(array, name)
        for name, array in zip(constants, case.constants, strict=True)
        if array is not None
    ]
    initializers += [numpy_helper.from_array(np.array(2, I64), "two"), numpy_helper.from_array(np.array(True), "yes")]
    graph = helper.make_graph(
        PLACES[place](node, results),
        "main",
        [_typed(name, array) for name, array in zip(fed, case.fed, strict=True)],
        _untyped(results),
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)


def _assert_converts(model: onnx.ModelProto, feeds: Mapping[str, Array], opset: int = 18) -> onnx.ModelProto:
    """Converts a model, compares it in ONNX Runtime with the original, and gives the result."""
    before = run_ort(model, feeds, optimise=False)
    converted = ir.to_proto(normalise(load(model)))
    assert {entry.domain: entry.version for entry in converted.opset_import}[""] == opset
    after = run_ort(converted, feeds, optimise=False)
    onnx.checker.check_model(_with_types(converted, after), full_check=True)
    assert list(after) == list(before)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    return converted


def _with_types(model: onnx.ModelProto, results: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with the types of its outputs, which the checker wants and ONNX Runtime does not."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    del typed.graph.output[:]
    typed.graph.output.extend(_typed(output.name, results[output.name]) for output in model.graph.output)
    return typed


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_converted_node_computes_the_same(case: Case, place: str) -> None:
    feeds = {f"x{index}": array for index, array in enumerate(case.fed)}
    _assert_converts(_model(case, place), feeds)


SCAN_BODY = """
agraph (float[2] s, float[2] u, float[2] v) => (float[2] s_next, float[2] y, float[2] z) {
    su = Add(s, u)
    s_next = Tanh(su)
    scaled = Mul(s_next, w)
    y = Sub(scaled, v)
    soft = Softmax<axis = 0>(y)
    z = Identity(soft)
}
"""


def _scan8(lengths: str = "", **attributes: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A Scan of opset 8 over [batch, sequence, features] that captures a weight."""
    body = onnx.parser.parse_graph(SCAN_BODY)
    node = helper.make_node(
        "Scan", [lengths, "s0", "us", "vs"], ["s", "ys", "zs"], body=body, num_scan_inputs=2, name="rnn", **attributes
    )
    feeds = {"s0": random(3, 2), "us": random(3, 5, 2), "vs": random(3, 5, 2) + 1}
    initializers = [numpy_helper.from_array(np.array([0.5, -2], np.float32), "w")]
    if lengths:
        initializers.append(numpy_helper.from_array(np.array([5, 2, 1], I64), lengths))
    graph = helper.make_graph(
        [node], "main", [_typed(n, a) for n, a in feeds.items()], _untyped(["s", "ys", "zs"]), initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8), feeds


@pytest.mark.parametrize("directions", [None, [0, 0], [1, 0], [1, 1]])
def test_scan_of_opset_8_runs_over_each_sample_of_the_batch(directions: list[int] | None) -> None:
    model, feeds = _scan8(directions=directions)
    converted = _assert_converts(model, feeds)
    (outer,) = [node for node in converted.graph.node if node.op_type == "Scan"]
    (inner,) = helper.get_node_attr_value(outer, "body").node
    assert inner.op_type == "Scan"


def test_scan_of_opset_8_with_sequence_lengths_is_refused() -> None:
    model, _ = _scan8(lengths="lengths")
    with pytest.raises(ModelError, match="Scan 'rnn': written for opset 8: sequence lengths are given"):
        normalise(load(model))


def _one_node(opset: int, node: onnx.NodeProto, outputs: Sequence[str], **constants: Array) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "main", [_typed("x", IMAGE)], _untyped(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


CHANNEL_PAIRS = {name: np.abs(random(2)) + 1 for name in ("scale", "bias", "mean", "var")}
REFUSED = {
    "the mask of a Dropout": _one_node(10, helper.make_node("Dropout", ["x"], ["y", "mask"]), ["y", "mask"]),
    "training mode": _one_node(
        9,
        helper.make_node("BatchNormalization", ["x", *CHANNEL_PAIRS], ["y", "m", "v", "sm", "sv"]),
        ["y", "m"],
        **CHANNEL_PAIRS,
    ),
    "a removed coordinate mode": _one_node(
        11,
        helper.make_node(
            "Resize",
            ["x", "roi", "scales"],
            ["y"],
            coordinate_transformation_mode="tf_half_pixel_for_nn",
            mode="linear",
        ),
        ["y"],
        roi=np.zeros(0, np.float32),
        scales=LARGER,
    ),
    "an opset before broadcasting": _one_node(6, helper.make_node("Relu", ["x"], ["y"]), ["y"]),
    "an opset that nobody knows": _one_node(999, helper.make_node("Relu", ["x"], ["y"]), ["y"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_equal_is_refused_by_name(what: str) -> None:
    node = REFUSED[what].graph.node[0]
    with pytest.raises(ModelError, match=f"{node.op_type}.*opset|main: is written for opset"):
        normalise(load(REFUSED[what]))


def test_missing_opset_import_is_refused() -> None:
    model = _one_node(18, helper.make_node("Relu", ["x"], ["y"]), ["y"])
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(ModelError, match="imports no ONNX opset"):
        normalise(load(model))


def test_unimported_domain_is_refused() -> None:
    model = _one_node(18, helper.make_node("FusedThing", ["x"], ["y"], domain="com.example"), ["y"])
    with pytest.raises(ModelError, match="FusedThing is of domain 'com.example', which is not imported"):
        normalise(load(model))


def test_newer_opset_stays() -> None:
    model = _one_node(21, helper.make_node("Relu", ["x"], ["y"]), ["y"])
    _assert_converts(model, {"x": IMAGE}, opset=21)


def test_long_name_of_the_default_domain_is_understood() -> None:
    model = _one_node(11, helper.make_node("Squeeze", ["x"], ["y"], axes=[0], domain="ai.onnx"), ["y"])
    model.opset_import[0].domain = "ai.onnx"
    converted = ir.to_proto(normalise(load(model)))
    assert [(entry.domain, entry.version) for entry in converted.opset_import] == [("", 18)]
    np.testing.assert_array_equal(run_ort(converted, {"x": IMAGE})["y"], IMAGE[0])


def test_node_keeps_its_name_and_its_output() -> None:
    model = _one_node(11, helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], name="mean"), ["y"])
    converted = normalise(load(model))
    (node,) = [node for node in converted.graph if node.op_type == "ReduceMean"]
    assert (node.name, node.outputs[0].name, node.outputs[0].is_graph_output()) == ("mean", "y", True)


def test_conversion_is_the_same_every_time() -> None:
    model = _model(CASES[0], "loop")
    first, second = (ir.to_proto(normalise(load(model))).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


MIXED_OPSETS = """
<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
main (float[2,3,4] x) => (float y, float z) {
    y = own.old (x)
    z = own.new (x)
}
<opset_import: ["" : 11], domain: "own">
old (x) => (y) { s = Softmax (x) y = ReduceSum <axes = [1, 2]> (s) }
<opset_import: ["" : 20], domain: "own">
new (x) => (y) { g = Gelu (x) axes = Constant <value_ints = [2]> () y = ReduceMax <keepdims = 0> (g, axes) }
"""


def test_functions_of_several_opsets_meet_at_the_newest() -> None:
    converted = normalise(load(onnx.parser.parse_model(MIXED_OPSETS)))
    assert converted.opset_imports[""] == 20
    proto = ir.to_proto(converted)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    results = run_ort(proto, {"x": X})
    flat = X.reshape(2, 12).astype(np.float64)
    soft = np.exp(flat) / np.exp(flat).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(results["y"].ravel(), soft.reshape(2, 3, 4).sum(axis=(1, 2)), rtol=1e-5)
    erf = np.vectorize(math.erf)
    np.testing.assert_allclose(results["z"], (X / 2 * (1 + erf(X / 2**0.5))).max(axis=2), rtol=1e-4)


NEWER = {
    "GridSample": ("float[1,2,3,4] x, float[1,2,2,2] grid", 'GridSample <mode = "bicubic"> (x, grid)'),
    "GridSample-default": ("float[1,2,3,4] x, float[1,2,2,2] grid", "GridSample (x, grid)"),
    "DFT": ("float[1,3,5,1] x", "DFT <axis = 2> (x)"),
    "DFT-default": ("float[1,3,5,1] x", "DFT (x)"),
}


@pytest.mark.parametrize("name", NEWER)
def test_old_function_in_a_newer_model(name: str) -> None:
    """ONNX Runtime 1.32 mixes the versions up itself, so the function alone, as a model, is what to compare with."""
    inputs, call = NEWER[name]
    names = ", ".join(part.split()[-1] for part in inputs.split(", "))
    alone = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]> m ({inputs}) => (y) {{ y = {call} }}"""
    )
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]> main ({inputs}) => (y) {{ y = own.old ({names}) }}
        <opset_import: ["" : 17], domain: "own"> old ({names}) => (y) {{ y = {call} }}
    """)
    feeds = {
        value.name: random(*(d.dim_value for d in value.type.tensor_type.shape.dim)) for value in model.graph.input
    }
    result = run_ort(ir.to_proto(normalise(load(model))), feeds)["y"]
    np.testing.assert_allclose(result, run_ort(alone, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_group_normalization_gets_a_scale_for_each_channel() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        main (float[2,6,3] x, float[2] scale, float[2] bias) => (float[2,6,3] y) { y = own.old (x, scale, bias) }
        <opset_import: ["" : 18], domain: "own">
        old (x, scale, bias) => (y) { y = GroupNormalization <num_groups = 2, epsilon = 0.1> (x, scale, bias) }
    """)
    x, scale, bias = random(2, 6, 3), np.array([0.5, 2], np.float32), np.array([1, -1], np.float32)
    rows = x.reshape(2, 2, 9)
    deviation = np.sqrt(rows.var(axis=2, keepdims=True) + 0.1)
    expected = (rows - rows.mean(axis=2, keepdims=True)) / deviation * scale[:, None] + bias[:, None]
    result = run_ort(ir.to_proto(normalise(load(model))), {"x": x, "scale": scale, "bias": bias})["y"]
    np.testing.assert_allclose(result, expected.reshape(x.shape), rtol=1e-4, atol=1e-5)
