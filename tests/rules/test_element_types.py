"""Derivatives in 16-bit types and in models of several types, operator by operator, in reverse and in forward mode."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.report.element_types import SIXTEEN_BIT
from tests.onnx_text import model
from tests.oracle import Array, check_emitted, run_ort
from tests.rules.element_types import KINDS, candidates, narrow_sums, way_of, with_rules

PARTS = 4  # so that several processes can share the work
EXACT_SUMS = {
    ("CumSum", "CumSum"): "a tangent is summed as the primal is",
    ("ReduceSum", "ReduceSum"): "a tangent is summed as the primal is",
    ("ReduceMean", "ReduceMean"): "a tangent is averaged as the primal is",
    ("DeformConv", "ReduceSum"): "over the corners of one cell",
}
"""Sums in a 16-bit type whose length is not known, by the operator that is differentiated, and why they are right."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(PARTS))
def test_derivatives_in_sixteen_bits(kind: str, part: int) -> None:
    stated = {name: way for way, names in SIXTEEN_BIT[kind].items() for name in names.split()}
    for name in with_rules()[part::PARTS]:
        found = way_of(name, kind)
        told = None if found is None else found.name.lower()
        assert stated.get(name) == told, f"{name}: run python -m tests.rules.element_types"


def test_no_operator_is_left_out() -> None:
    float16, bfloat16 = (sum(len(names.split()) for names in ways.values()) for ways in SIXTEEN_BIT.values())
    assert float16 > 130
    assert bfloat16 > 115


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["vjp", "jvp"])
def test_long_sums_are_made_in_float32(mode: str) -> None:
    """Where a dimension is not known, no sum that a rule writes runs in 16 bits."""
    found: set[tuple[str, str]] = set()
    for name in with_rules():
        for narrow in itertools.islice(candidates(name, "float16", unknown_dims=True), 2):
            try:
                derived = getattr(cfad, mode)(narrow.model, wrt=narrow.wrt, outputs=narrow.outputs)
            except UnsupportedOp:  # a rule that needs a size
                continue
            found.update((name, op_type) for op_type in narrow_sums(derived.proto(), "float16"))
    assert found - EXACT_SUMS.keys() == set()


ISLAND = """g (float[4, 3] x, KIND[3, 5] w, float[5] b) => (float[4, 5] y) {
    narrow = Cast <to = NUMBER> (x)
    product = MatMul (narrow, w)
    active = Tanh (product)
    wide = Cast <to = 1> (active)
    sum = Add (wide, b)
    y = Sin (sum)
}"""
WIDE_SUM = """g (float[5000] x, float[1] w) => (float y) {
    p = Mul (x, w)
    wide = Cast <to = 11> (p)
    s = ReduceSum <keepdims = 0> (wide)
    r = Tanh (s)
    y = Cast <to = 1> (r)
}"""
LIKE = """g (float16[3] x, double[3] w) => (double[3] y) {
    a = Exp (x)
    b = CastLike (a, w)
    c = Mul (b, w)
    d = CastLike (c, x)
    e = Mul (d, x)
    y = Cast <to = 11> (e)
}"""
MIXED = {"island": ISLAND, "wide sum": WIDE_SUM, "like": LIKE}


def formula(name: str, feeds: dict[str, Array]) -> Array:
    """The model in float64."""
    wide = {key: array.astype(np.float64) for key, array in feeds.items()}
    x, w = wide["x"], wide["w"]
    if name == "island":
        return np.sin(np.tanh(x @ w) + wide["b"])
    if name == "wide sum":
        return np.tanh(np.sum(x * w))
    return np.exp(x) * w * x


@pytest.mark.parametrize("name", MIXED)
def test_types_are_mixed(name: str) -> None:
    """Gradients have the types of their values, tangents those of the outputs; all of them the digits of the narrow."""
    text = MIXED[name].replace("KIND", "float16").replace("NUMBER", "10")
    proto = model(text)
    rng = np.random.default_rng(2)
    feeds = _feeds(proto, rng)
    if name == "wide sum":
        feeds["x"] = feeds["x"] / np.float32(70)
    reverse, forward = cfad.vjp(proto), cfad.jvp(proto)
    for derived in (reverse, forward):
        check_emitted(derived.proto())
    out = run_ort(proto, feeds)["y"]
    seed = np.asarray(rng.standard_normal(out.shape)).astype(out.dtype)
    along = {key: np.asarray(rng.standard_normal(a.shape)).astype(a.dtype) for key, a in feeds.items()}
    grads = run_ort(reverse.proto(), {**feeds, "y_grad": seed})
    pushed = run_ort(forward.proto(), {**feeds, **{f"{key}_tangent": t for key, t in along.items()}})["y_tangent"]
    assert pushed.dtype == out.dtype
    step, total = 1e-6, 0.0
    for key, array in feeds.items():
        assert grads[f"{key}_grad"].dtype == array.dtype
        t = along[key].astype(np.float64)
        ends = [formula(name, {**feeds, key: array.astype(np.float64) + sign * step * t}) for sign in (1, -1)]
        expected = float(np.sum(seed * (ends[0] - ends[1]) / (2 * step)))
        terms = grads[f"{key}_grad"].astype(np.float64) * t
        assert abs(float(terms.sum()) - expected) <= 5e-3 * float(np.abs(terms).sum()) + 1e-3, key
        total += expected
    assert (
        abs(float(np.sum(seed.astype(np.float64) * pushed)) - total) <= 5e-3 * float(np.abs(seed * pushed).sum()) + 1e-2
    )


def test_bfloat16_island_keeps_its_types() -> None:
    """No runtime here multiplies matrices of bfloat16: the emitted model is checked as a model."""
    proto = model(ISLAND.replace("KIND", "bfloat16").replace("NUMBER", "16"))
    for derived in (cfad.vjp(proto), cfad.jvp(proto)):
        check_emitted(derived.proto())
    kinds = {output.name: output.type.tensor_type.elem_type for output in cfad.vjp(proto).proto().graph.output}
    assert (kinds["w_grad"], kinds["x_grad"]) == (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT)


def _feeds(proto: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    for value in proto.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.asarray(0.5 * rng.standard_normal(shape)).astype(kind)
    return feeds
