"""A model in float64: the same model, computed more exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnx_cfad.numeric.widen import widen
from tests.corpus import CORPUS, Example
from tests.execution import run_in_onnxruntime, run_in_reference

Array = np.ndarray[Any, Any]
NARROW = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def widened(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    held = ir.from_proto(model)
    exact = widen(held)
    wide = ir.to_proto(held)
    onnx.checker.check_model(wide)
    return wide, exact


def wide_feeds(feeds: dict[str, Array]) -> dict[str, Array]:
    return {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in feeds.items()}


def parsed(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def element_types(graph: onnx.GraphProto) -> set[int]:
    found = {t.data_type for t in graph.initializer}
    found |= {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    for node in graph.node:
        for attribute in node.attribute:
            found |= {attribute.t.data_type} if attribute.type == onnx.AttributeProto.TENSOR else set()
            found |= element_types(attribute.g) if attribute.type == onnx.AttributeProto.GRAPH else set()
    return found


MODELS = [make for group in CORPUS.values() for make in group.values()]


@pytest.mark.parametrize("real", ["float", "float16"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_corpus_model_has_no_narrow_type_left(make: Any, real: str) -> None:
    wide, exact = widened(make(real).model)
    assert exact
    assert not element_types(wide.graph) & NARROW


def test_same_numbers_in_more_digits() -> None:
    example: Example = CORPUS["loops"]["loop_static"]("float")
    wide, _ = widened(example.model)
    expected = run_in_onnxruntime(CORPUS["loops"]["loop_static"]("double").model, wide_feeds(example.feeds))
    found = run_in_onnxruntime(wide, wide_feeds(example.feeds))
    np.testing.assert_array_equal(found["y"], expected["y"])
    assert found["y"].dtype == np.float64


def test_scales_of_a_resize_stay_float32() -> None:
    model = parsed("""g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        y = Resize <mode = "linear"> (x, , scales)
    }""")
    wide, exact = widened(model)
    assert exact
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    found = run_in_reference(wide, wide_feeds({"x": x}))["y"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, run_in_onnxruntime(model, {"x": x})["y"], rtol=1e-6)


def test_defaults_that_mean_float32_are_written_out() -> None:
    model = parsed("""g (float[2] x) => (float[2] y) {
        size = Shape (x)
        zeros = ConstantOfShape (size)
        half = Constant <value_float = 0.1> ()
        two = Constant <value_floats = [0.1, 0.2]> ()
        number = Constant <value_int = 3> ()
        three = Cast <to = 1> (number)
        empty = SequenceEmpty ()
        sequence = SequenceInsert (empty, x)
        joined = ConcatFromSequence <axis = 0> (sequence)
        a = Add (joined, zeros)
        b = Mul (a, half)
        c = Mul (b, two)
        y = Mul (c, three)
    }""")
    wide, exact = widened(model)
    assert exact
    x = np.asarray([1.0, -2.0])
    # the constants are float32 numbers, whatever the type that holds them
    tenth, fifth = np.float64(np.float32(0.1)), np.float64(np.float32(0.2))
    expected = x * tenth * np.asarray([tenth, fifth]) * 3
    np.testing.assert_allclose(run_in_onnxruntime(wide, {"x": x})["y"], expected, rtol=1e-15)


def test_result_that_the_standard_fixes_to_float32_is_not_exact() -> None:
    model = parsed("""g (float[2,3] x) => (float[2,3] y, float[2,1] m) <float[3] s = {1.0, 2.0, 3.0}> {
        y, m = LayerNormalization <axis = -1> (x, s)
    }""")
    wide, exact = widened(model)
    assert not exact
    x = np.asarray([[1.0, 2.0, 4.0], [0.0, 1.0, -1.0]])
    assert run_in_onnxruntime(wide, {"x": x})["m"].dtype == np.float64


def test_result_that_nobody_reads_does_not_matter() -> None:
    model = parsed("""g (float[2,3] x) => (float[2,3] y) <float[3] s = {1.0, 2.0, 3.0}> {
        y, unread = LayerNormalization <axis = -1> (x, s)
    }""")
    assert widened(model)[1]


def test_functions_are_widened() -> None:
    body = [
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Mul", ["a", "half"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Halve", ["a"], ["b"], body, [opsets[0]])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Halve", ["x"], ["y"], domain="own")], "g", [x], [y])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    wide, exact = widened(model)
    assert exact
    np.testing.assert_array_equal(run_in_onnxruntime(wide, {"x": np.asarray([1.0, 3.0])})["y"], [0.5, 1.5])


def test_a_function_that_computes_in_a_type_of_its_own_computes_in_float64() -> None:
    text = """g (float[1,4,3] x, float[4] s, float[4] b) => (float[1,4,3] y) {
        y = GroupNormalization <num_groups = 2> (x, s, b)
    }"""
    wide, exact = widened(parsed(text))
    assert exact
    x, step = np.asarray(np.arange(12.0)).reshape(1, 4, 3) ** 2, 1e-9
    feeds = {"x": x, "s": np.asarray([1.0, 2, 3, 4]), "b": np.zeros(4)}
    moved = {**feeds, "x": x + step * np.eye(12)[5].reshape(x.shape)}
    slope = (run_in_onnxruntime(wide, moved)["y"] - run_in_onnxruntime(wide, feeds)["y"]) / step
    assert abs(slope).max() == pytest.approx(0.0886970, rel=1e-4)


def test_type_of_an_empty_optional_is_widened() -> None:
    model = parsed("""g (float[2] x, bool p) => (float[2] y) {
        o = If (p) <
            then_branch = some () => (optional(float[2]) a) { a = Optional (x) },
            else_branch = none () => (optional(float[2]) b) { b = Optional <type: type_proto = float[2]> () }
        >
        full = OptionalHasElement (o)
        y = If (full) <
            then_branch = read () => (float[2] c) { c = OptionalGetElement (o) },
            else_branch = other () => (float[2] d) { d = Sin (x) }
        >
    }""")
    wide, exact = widened(model)
    assert exact
    x = np.asarray([0.25, 1.5])
    for taken, expected in ((True, x), (False, np.sin(x))):
        found = run_in_onnxruntime(wide, {"x": x, "p": np.asarray(taken)})
        np.testing.assert_allclose(found["y"], expected, rtol=1e-12)
