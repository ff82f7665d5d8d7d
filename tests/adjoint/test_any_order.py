"""Results differentiate again, in any order of modes: third derivatives through control flow; types of tangents."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, run_ort


def loop(trips: int) -> str:
    return f"""(double[2] x) => (double[] y) <int64 n = {{{trips}}}> {{
        h = Loop (n, , x) <body = b (int64 i, bool c, double[2] z) => (bool d, double[2] next) {{
            d = Identity (c)
            s = Sin (z)
            next = Mul (s, x)
        }}>
        y = ReduceSum <keepdims = 0> (h)
    }}"""


MODELS = {
    "straight": """(double[2] x) => (double[] y) {
        a = Sin (x)
        b = Mul (a, x)
        c = Exp (b)
        y = ReduceSum <keepdims = 0> (c)
    }""",
    "loop": loop(2),
    "scan": """(double[2] x) => (double[] y) <double[3, 2] rows = {0.5, 1.0, -0.25, 0.75, 1.5, 0.1}> {
        h, hs = Scan <num_scan_inputs = 1, body = b (double[2] z, double[2] r) => (double[2] next, double[2] out) {
            m = Mul (z, r)
            t = Tanh (m)
            next = Add (t, x)
            out = Mul (next, z)
        }> (x, rows)
        y = ReduceSum <keepdims = 0> (hs)
    }""",
    "branch": """(double[2] x) => (double[] y) {
        total = ReduceSum <keepdims = 0> (x)
        zero = Constant <value_float = 0.0> ()
        low = CastLike (zero, total)
        p = Greater (total, low)
        h = If (p) <
            then_branch = t () => (double[2] a) { u = Sin (x)  a = Mul (u, x) },
            else_branch = e () => (double[2] b) { b = Exp (x) }>
        y = ReduceSum <keepdims = 0> (h)
    }""",
    "checkpointed": loop(5),
    "three_levels": loop(7),
    "unrolled": loop(3),
    "sequence": """(double[2] x) => (double[] y) <int64 n = {3}> {
        first = Sin (x)
        start = SequenceConstruct (first)
        s = Loop (n, , start) <body = b (int64 i, bool c, seq(double[2]) t) => (bool d, seq(double[2]) more) {
            d = Identity (c)
            e = SequenceAt (t, i)
            m = Mul (e, x)
            u = Tanh (m)
            more = SequenceInsert (t, u)
        }>
        h = ConcatFromSequence <axis = 0> (s)
        y = ReduceSumSquare <keepdims = 0> (h)
    }""",
}
PLANS: dict[str, dict[str, Any]] = {
    "checkpointed": {"plan": "checkpointed", "segment": 2},
    "three_levels": {"plan": "checkpointed", "segment": 2, "levels": 3},
    "unrolled": {"plan": "unrolled"},
}
X = np.asarray([0.7, -0.4])


def model(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {MODELS[name]}')


@pytest.mark.parametrize("modes", list(itertools.product(("vjp", "jvp"), repeat=2)), ids="-".join)
@pytest.mark.parametrize("name", MODELS)
def test_third_derivative(name: str, modes: tuple[str, str]) -> None:
    """Two derivatives in any modes; the third, in both modes, is compared with differences of the second."""
    source, feeds, results = model(name), {"x": X}, ["y"]
    rng = np.random.default_rng(8)
    for mode in modes:
        planned = mode == "vjp" and (len(feeds) == 1 or name != "three_levels")  # a third level twice takes minutes
        plan = PLANS.get(name, {}) if planned else {}
        derived = getattr(cfad, mode)(source, wrt=["x"], outputs=results, **plan)
        shapes = {r: run_ort(source, feeds)[r].shape for r in results}
        if mode == "vjp":
            feeds |= {given: rng.standard_normal(shapes[output]) for output, given in derived.report.seeds.items()}
            results = list(derived.report.gradients.values())
        else:
            feeds |= {given: rng.standard_normal(X.shape) for given in derived.report.tangents.values()}
            results = list(derived.report.pushed.values())
        source = _renamed(derived.proto(), results)
        results = [f"{name}_of_{len(feeds)}" for name in results]
    assert_vjp(source, feeds, wrt=["x"], outputs=results, rtol=1e-5, atol=1e-5)


def _renamed(proto: onnx.ModelProto, results: list[str]) -> onnx.ModelProto:
    """The model with ``results`` alone as outputs, under names that a further derivative does not use."""
    count = len(proto.graph.input)
    tensors = {output.name: output.type.tensor_type for output in proto.graph.output}
    del proto.graph.output[:]
    for name in results:
        new, tensor = f"{name}_of_{count}", tensors[name]
        proto.graph.node.append(helper.make_node("Identity", [name], [new], name=new))
        shape = [None] * len(tensor.shape.dim)
        proto.graph.output.append(helper.make_tensor_value_info(new, tensor.elem_type, shape))
    return proto


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["straight", "loop", "checkpointed"])
def test_tangents_in_narrow_types(name: str, dtype: str) -> None:
    """Against the same tangents in float64."""
    text = MODELS[name].replace("double", {"float32": "float", "float16": "float16"}[dtype])
    narrow = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    x, t = X.astype(dtype), np.asarray([1.0, 0.5], dtype)
    run = functools.partial(_tangent, t=t)
    found, expected = run(narrow, x), run(model(name), x.astype(np.float64))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-2)


def _tangent(source: onnx.ModelProto, x: Any, *, t: Any) -> Any:
    emitted = cfad.jvp(source, wrt=["x"]).proto()
    return run_ort(emitted, {"x": x, "x_tangent": t.astype(x.dtype)})["y_tangent"]


def test_bfloat16_goes_through_casts() -> None:
    """ONNX Runtime has few kernels in bfloat16: the casts on both sides are differentiated."""
    text = """(float[3] x) => (float[3] y) {
        a = Cast <to = 16> (x)
        b = Cast <to = 1> (a)
        y = Mul (b, b)
    }"""
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    x = np.asarray([1.0, 2.0, -3.0], np.float32)
    emitted = cfad.jvp(source, wrt=["x"]).proto()
    found = run_ort(emitted, {"x": x, "x_tangent": np.ones(3, np.float32)})["y_tangent"]
    np.testing.assert_allclose(found, 2 * x)
