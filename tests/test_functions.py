"""Inlining: what a model with local functions computes stays the same, and what cannot be inlined is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.errors import ModelError
from onnx_cfad.model import load, normalise
from tests.oracle import run_ort

HEAD = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'
OWN = '<opset_import: ["" : 18, "own" : 1], domain: "own">'
X = np.array([1, -2], np.float32)


def parse(main: str, *functions: str) -> onnx.ModelProto:
    return onnx.parser.parse_model("\n".join([HEAD, main, *(OWN + function for function in functions)]))


def _assert_same(model: onnx.ModelProto, **feeds: np.ndarray) -> ir.Model:
    expected = run_ort(model, {"x": X, **feeds})
    converted = normalise(load(model))
    assert not converted.functions
    found = run_ort(ir.to_proto(converted), {"x": X, **feeds})
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)
    names = [o.name for node in converted.graph.all_nodes() for o in node.outputs]
    assert len(set(names)) == len(names)
    return converted


LEAKY = "leaky <alpha : float = 0.1> (x) => (y) { y = LeakyRelu <alpha : float = @alpha> (x) }"
TWICE = "twice (x) => (y) { t = own.leaky <alpha = 0.5> (x) y = own.leaky (t) }"


def test_functions_that_call_functions() -> None:
    _assert_same(parse("m (float[2] x) => (float[2] y) { t = own.twice (x) y = own.twice (t) }", LEAKY, TWICE))


def test_calls_inside_subgraphs() -> None:
    model = parse(
        """m (float[2] x, bool c, int64 n) => (float[2] y) {
            y = Loop (n, , x) <
                body = b (int64 i, bool g, float[2] t) => (bool h, float[2] r) {
                    h = Identity (g)
                    r = If (c) <
                        then_branch = a () => (float[2] p) { p = own.twice (t) },
                        else_branch = e () => (float[2] p) { q = own.leaky (x) p = Add (q, t) }
                    >
                }
            >
        }""",
        LEAKY,
        TWICE,
    )
    for taken in (True, False):
        _assert_same(model, c=np.array(taken), n=np.array(3, np.int64))


def test_function_with_control_flow_is_called_twice() -> None:
    model = parse(
        "m (float[2] x, bool c) => (float[2] y) { t = own.choose (x, c) n = Not (c) y = own.choose (t, n) }",
        """choose (x, c) => (y) {
            y = If (c) <
                then_branch = a () => (float[2] p) { p = Tanh (x) },
                else_branch = e () => (float[2] p) { p = Exp (x) }
            >
        }""",
    )
    converted = _assert_same(model, c=np.array(True))
    assert [node.op_type for node in converted.graph].count("If") == 2


def test_names_of_the_caller_survive_a_function_that_returns_its_input() -> None:
    model = parse(
        "m (float[2] x) => (float[2] y, float[2] z, float[2] v, float[2] w) { y, z = own.both (x) v, w = own.two (x) }",
        "both (a) => (a, b) { b = Neg (a) }",
        "two (a) => (b, b) { b = Exp (a) }",
    )
    converted = normalise(load(model))
    assert [value.name for value in converted.graph.inputs] == ["x"]
    assert [value.name for value in converted.graph.outputs] == ["y", "z", "v", "w"]
    found = run_ort(ir.to_proto(converted), {"x": X})
    for name, expected in {"y": X, "z": -X, "v": np.exp(X), "w": np.exp(X)}.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_absent_optional_input_and_attribute() -> None:
    model = parse(
        "m (float[2] x) => (float[2] y) { y = own.bounded (x) }", "bounded (x, low) => (y) { y = Clip (x, low) }"
    )
    _assert_same(model)


def test_unused_functions_disappear() -> None:
    assert not normalise(load(parse("m (float[2] x) => (float[2] y) { y = Neg (x) }", LEAKY))).functions


@pytest.mark.parametrize(
    ("functions", "cycle"),
    [
        (["f (x) => (y) { y = own.f (x) }"], "own::f -> own::f"),
        (
            ["f (x) => (y) { y = own.g (x) }", "g (x) => (y) { y = own.h (x) }", "h (x) => (y) { y = own.f (x) }"],
            "own::g",
        ),
        (
            [
                """f (x) => (y) {
                c = Constant <value = bool {1}> ()
                y = If (c) <then_branch = a () => (p) { p = own.f (x) }, else_branch = e () => (q) { q = Neg (x) }>
            }"""
            ],
            "own::f -> own::f",
        ),
    ],
    ids=["itself", "three", "in a branch"],
)
def test_cyclic_calls_are_refused_by_name(functions: list[str], cycle: str) -> None:
    model = parse("m (float[2] x) => (float[2] y) { y = own.f (x) }", *functions)
    with pytest.raises(ModelError, match=f"they call each other in a cycle: .*{cycle}"):
        normalise(load(model))


def test_doubling_functions_are_refused_before_they_are_inlined() -> None:
    """Thirty functions, each calling the next one twice, would be 2^30 nodes."""
    functions = [f"f{k} (x) => (y) {{ t = own.f{k + 1} (x) y = own.f{k + 1} (t) }}" for k in range(30)]
    model = parse("m (float[2] x) => (float[2] y) { y = own.f0 (x) }", *functions, "f30 (x) => (y) { y = Neg (x) }")
    with pytest.raises(ModelError, match="the model would have 1,073,741,824 nodes inlined"):
        normalise(load(model))


def test_functions_that_nest_too_deep_are_refused() -> None:
    functions = [
        f"""f{k} (x, c) => (y) {{
            y = If (c) <
                then_branch = a () => (p) {{ p = own.f{k + 1} (x, c) }},
                else_branch = e () => (q) {{ q = Neg (x) }}
            >
        }}"""
        for k in range(70)
    ]
    main = "m (float[2] x, bool c) => (float[2] y) { y = own.f0 (x, c) }"
    with pytest.raises(ModelError, match="subgraphs would be nested 70 deep inlined"):
        normalise(load(parse(main, *functions, "f70 (x, c) => (y) { y = Neg (x) }")))


def test_too_many_inputs_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot be inlined: Input mismatch .* 'own::leaky'"):
        normalise(load(parse("m (float[2] x) => (float[2] y) { y = own.leaky (x, x) }", LEAKY)))


def test_undefined_value_in_a_function_is_refused() -> None:
    with pytest.raises(ModelError, match="function own::f/Add: input 'nowhere' is defined nowhere"):
        load(parse("m (float[2] x) => (float[2] y) { y = own.f (x) }", "f (x) => (y) { y = Add (x, nowhere) }"))
