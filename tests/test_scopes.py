"""Invalid graphs are refused by name; names become unique without changing what is computed."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.errors import ModelError
from onnx_cfad.model import load, normalise
from tests.oracle import run_ort

CASES = pathlib.Path(__file__).parents[2] / "shared" / "cases"
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
X = np.array([1, 2], np.float32)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def names_of(model: ir.Model) -> list[str]:
    return [
        value.name or ""
        for graph in model.graphs()
        for value in (*graph.inputs, *graph.initializers.values(), *(o for node in graph for o in node.outputs))
    ]


OUTER_NAME = """
m (float[2] x, bool c) => (float[2] y) {
    e = Exp (x)
    y = If (c) <then_branch = t () => (float[2] e) {}, else_branch = f () => (float[2] z) { z = Neg (x) }>
}
"""
UNDEFINED_INNER = """
m (float[2] x, bool c) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] r) { r = Neg (nowhere) },
        else_branch = f () => (float[2] z) { z = Neg (x) }
    >
}
"""
SIBLING = """
m (float[2] x, bool c) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] r) { s = Exp (x) r = Neg (s) },
        else_branch = f () => (float[2] z) { z = Neg (s) }
    >
}
"""
CYCLE_INSIDE = """
m (float[2] x, bool c) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] b) { [first] a = Add (x, b) [second] b = Neg (a) },
        else_branch = f () => (float[2] z) { z = Neg (x) }
    >
}
"""
CYCLE_THROUGH = """
m (float[2] x, bool c) => (float[2] y) {
    [choose] y = If (c) <
        then_branch = t () => (float[2] r) { r = Neg (after) },
        else_branch = f () => (float[2] z) { z = Neg (x) }
    >
    [later] after = Exp (y)
}
"""
INVALID = {
    "branch output is an outer name": (OUTER_NAME, "main/If/then: output 'e' is a name of an outer scope"),
    "undefined input": (
        "m (float x) => (float y) { y = Add (x, nowhere) }",
        "main/Add: input 'nowhere' is defined nowhere",
    ),
    "undefined inside": (UNDEFINED_INNER, "main/If/then/Neg: input 'nowhere' is defined nowhere"),
    "defined in a sibling only": (SIBLING, "main/If/else/Neg: input 's' is defined nowhere"),
    "undefined output": ("m (float x) => (float y) { z = Neg (x) }", "main: output 'y' is produced by nothing"),
    "two definitions": ("m (float x) => (float y) { y = Neg (x) y = Exp (x) }", "'y' is redeclared"),
    "redefined input": ("m (float x) => (float x) { x = Neg (x) }", "'x' is redeclared"),
    "cycle": ("m (float x) => (float y) { a = Add (x, y) y = Neg (a) }", "its nodes form a cycle: "),
    "cycle in a branch": (CYCLE_INSIDE, "its nodes form a cycle: "),
    "cycle through a branch": (CYCLE_THROUGH, "its nodes form a cycle: "),
    "reference outside of a function": (
        "m (float[2] x) => (float[2] y) { y = Softmax <axis : int = @axis> (x) }",
        "attribute 'axis' refers to attribute 'axis' of a function",
    ),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_graph_is_refused_by_name(what: str) -> None:
    text, message = INVALID[what]
    with pytest.raises(ModelError) as caught:
        load(parse(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cycle_names_its_nodes() -> None:
    with pytest.raises(ModelError, match="cycle: (first -> second -> first|second -> first -> second)"):
        load(parse(CYCLE_INSIDE))
    with pytest.raises(ModelError, match="cycle: (choose -> later -> choose|later -> choose -> later)"):
        load(parse(CYCLE_THROUGH))


def test_branch_output_that_is_an_outer_value_is_refused_in_ir() -> None:
    model = ir.from_proto(parse(OUTER_NAME))
    (exp, choose) = list(model.graph)
    choose.attributes["then_branch"].as_graph().outputs[0] = exp.outputs[0]
    with pytest.raises(ModelError, match="output 'e' is a name of an outer scope"):
        load(model)


def test_two_values_of_one_name_are_refused_in_ir() -> None:
    model = ir.from_proto(parse("m (float x) => (float y) { z = Neg (x) y = Exp (z) }"))
    model.graph[0].outputs[0].name = "x"
    with pytest.raises(ModelError, match="'x' is defined twice in one scope"):
        load(model)


def test_initializer_without_value_is_refused() -> None:
    model = ir.from_proto(parse("m (float x) => (float y) <float w = {1.0}> { y = Add (x, w) }"))
    model.graph.initializers["w"].const_value = None
    with pytest.raises(ModelError, match="initializer 'w' has no value"):
        load(model)


@pytest.mark.parametrize("suffix", ["", "_f64"])
def test_reference_case_is_refused(suffix: str) -> None:
    path = CASES / f"branch_output_is_outer_name_invalid{suffix}.onnx"
    if not path.exists():
        pytest.skip("the reference cases are not beside the repository")
    with pytest.raises(ModelError, match="output 'e' is a name of an outer scope"):
        load(path)


BAD_SITES = {
    "Loop body with too few inputs": (
        """m (float[2] x, int64 n) => (float[2] y) {
            y = Loop (n, , x) <body = b (int64 i, bool g) => (bool h, float[2] r) { h = Identity (g) r = Neg (x) }>
        }""",
        "Loop/body: it has 2 inputs, the node needs 3",
    ),
    "Loop body with too many outputs": (
        """m (float[2] x, int64 n) => (float[2] y) {
            y = Loop (n, , x) <
                body = b (int64 i, bool g, float[2] a) => (bool h, float[2] r, float[2] s)
                { h = Identity (g) r = Neg (a) s = Exp (a) }
            >
        }""",
        "Loop/body: it has 3 outputs, the node needs 2",
    ),
    "If with one branch": (
        "m (float x, bool c) => (float y) { y = If (c) <then_branch = t () => (float r) { r = Neg (x) }> }",
        "If: it has no else_branch",
    ),
    "If whose branches give different numbers of results": (
        """m (float x, bool c) => (float y) {
            y = If (c) <
                then_branch = t () => (float r, float s) { r = Neg (x) s = Exp (x) },
                else_branch = f () => (float z) { z = Neg (x) }
            >
        }""",
        "If/then_branch: it has 2 outputs, the node needs 1",
    ),
}


@pytest.mark.parametrize("what", BAD_SITES)
def test_subgraph_that_does_not_fit_its_node_is_refused(what: str) -> None:
    text, message = BAD_SITES[what]
    with pytest.raises(ModelError, match=message):
        normalise(load(parse(text)))


def test_nodes_out_of_order_are_put_in_order() -> None:
    model = parse("m (float[2] x) => (float[2] y) { y = Neg (a) a = Exp (x) }")
    converted = normalise(load(model))
    assert [node.op_type for node in converted.graph] == ["Exp", "Neg"]
    np.testing.assert_allclose(run_ort(ir.to_proto(converted), {"x": X})["y"], -np.exp(X), rtol=1e-6)


def test_captured_value_that_is_defined_later_is_put_before() -> None:
    model = parse("""
    m (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] r) { r = Neg (late) },
            else_branch = f () => (float[2] z) { z = Neg (x) }
        >
        late = Exp (x)
    }""")
    converted = normalise(load(model))
    assert [node.op_type for node in converted.graph] == ["Exp", "If"]


SHADOWED = """
m (float[2] x, bool c) => (float[2] y, float[2] t) {
    y = If (c) <
        then_branch = t () => (float[2] t) <float[2] w = {1.0, 2.0}> { [same] t = Add (x, w) },
        else_branch = f () => (float[2] t) <float[2] w = {3.0, 4.0}> { [same] t = Mul (x, w) }
    >
    [same] t = Exp (y)
}
"""
SHADOWED_LOOP = """
m (float[2] x, int64 n) => (float[2] y) {
    scaled = Mul (x, x)
    y = Loop (n, , scaled) <
        body = b (int64 n, bool keep, float[2] x) => (bool go, float[2] scaled)
        { go = Identity (keep) k = CastLike (n, x) s = Add (x, k) scaled = Tanh (s) }
    >
}
"""


def _assert_unique_names(model: ir.Model) -> None:
    names = names_of(model)
    assert len(set(names)) == len(names)
    node_names = [node.name for node in model.graph.all_nodes() if node.name]
    assert len(set(node_names)) == len(node_names)


def test_names_are_unique_over_all_scopes_and_mean_the_same() -> None:
    model = parse(SHADOWED)
    converted = normalise(load(model))
    _assert_unique_names(converted)
    for taken in (True, False):
        _assert_same(model, ir.to_proto(converted), {"x": X, "c": np.array(taken)})


def test_name_defined_again_inside_is_another_value() -> None:
    """ONNX Runtime refuses the original (a body that defines an outer name), so the numbers are computed here."""
    converted = normalise(load(parse(SHADOWED_LOOP)))
    _assert_unique_names(converted)
    expected = X * X
    for step in range(3):
        expected = np.tanh(expected + step)
    found = run_ort(ir.to_proto(converted), {"x": X, "n": np.array(3, np.int64)})
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)


def test_main_graph_keeps_its_names() -> None:
    converted = normalise(load(parse(SHADOWED)))
    assert [node.outputs[0].name for node in converted.graph] == ["y", "t"]
    assert converted.graph[1].name == "same"


@pytest.mark.parametrize("suffix", ["", "_f64"])
def test_shadowed_reference_case_computes_the_same(suffix: str) -> None:
    path = CASES / f"shadowed_subgraph_input{suffix}.onnx"
    if not path.exists():
        pytest.skip("the reference cases are not beside the repository")
    stored = dict(np.load(path.with_name("shadowed_subgraph_input.npz")))
    model = onnx.load(path)
    kind = np.float64 if suffix else np.float32
    feeds = {name[3:]: a.astype(kind) if a.dtype.kind == "f" else a for name, a in stored.items() if name[:3] == "in_"}
    converted = normalise(load(path))
    assert len(set(names_of(converted))) == len(names_of(converted))
    _assert_same(model, ir.to_proto(converted), feeds)


def test_omitted_outputs_of_a_loop_get_names() -> None:
    """ONNX Runtime 1.32 crashes on the original, so the expected numbers are written out."""
    model = parse("""
    m (float[2] x, int64 n) => (float[2] y) {
        unused, y, all = Loop (n, , x, x) <
            body = b (int64 i, bool g, float[2] p, float[2] q) => (bool h, float[2] r, float[2] s, float[2] all)
            { h = Identity (g) r = Add (p, q) s = Add (q, x) all = Neg (p) }
        >
    }""")
    model.graph.node[0].output[0] = ""
    model.graph.node[0].output[2] = ""
    converted = normalise(load(model))
    assert [bool(output.name) for output in converted.graph[0].outputs] == [True, True, True]
    result = run_ort(ir.to_proto(converted), {"x": X, "n": np.array(3, np.int64)})
    np.testing.assert_array_equal(result["y"], 4 * X)


def test_omitted_outputs_of_other_nodes_stay_omitted() -> None:
    model = parse("m (float[2] x) => (int64[1] y) <int64[1] k = {1}> { v, y = TopK (x, k) }")
    model.graph.node[0].output[0] = ""
    assert [output.name for output in normalise(load(model)).graph[0].outputs] == ["", "y"]


def _assert_same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    expected, found = run_ort(before, feeds), run_ort(after, feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
