"""Cotangents of a tensor that was cut up: one Concat where the parts are all of an axis, sums where they are not."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.oracle import run_ort

TEXT = """<ir_version: 10, opset_import: ["": 21]> cut (double[2, 6] x) => (double[2, 2] y)
    <int64[1] o = {0}, int64[1] a = {A}, int64[1] b = {4}, int64[1] e = {6}, int64[1] one = {1}> {
    p = Slice (x, o, a, one)  q = Slice (x, a, b, one)  r = Slice (x, b, e, one)
    u = ReduceSum (p, one)  v = ReduceSum (q, one)  w = Exp (r)  s = Mul (u, v)  y = Mul (s, w)
}"""


def gradient(text: str) -> onnx.ModelProto:
    return cfad.vjp(onnx.parser.parse_model(text), wrt=["x"]).proto()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_parts_of_a_whole_axis(first: int) -> None:
    found = gradient(TEXT.replace("{A}", f"{{{first}}}"))
    used = {node.op_type for node in found.graph.node}
    assert "Concat" in used
    assert "Pad" not in used
    x = np.arange(12.0).reshape(2, 6) / 7
    seed = np.array([[1.0, -2.0], [0.5, 3.0]])
    u, v, w = x[:, :first].sum(1), x[:, first:4].sum(1), np.exp(x[:, 4:])
    expected = np.concatenate([
        np.repeat(((seed * w).sum(1) * v)[:, None], first, 1),
        np.repeat(((seed * w).sum(1) * u)[:, None], 4 - first, 1),
        seed * (u * v)[:, None] * w,
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(run_ort(found, {"x": x, "y_grad": seed})["x_grad"], expected, rtol=1e-12)


def test_parts_that_overlap_or_leave_a_gap_are_summed() -> None:
    text = TEXT.replace("{A}", "{2}").replace("Slice (x, a, b, one)", "Slice (x, o, b, one)")
    found = gradient(text)
    assert sum(node.op_type == "Pad" for node in found.graph.node) >= 1
    x, seed = np.arange(12.0).reshape(2, 6) / 7, np.ones((2, 2))
    u, v, w = x[:, :2].sum(1), x[:, :4].sum(1), np.exp(x[:, 4:])
    total = (seed * w).sum(1)
    expected = np.concatenate([
        np.repeat((total * (u + v))[:, None], 2, 1), np.repeat((total * u)[:, None], 2, 1), seed * (u * v)[:, None] * w,
    ], axis=1)  # fmt: skip
    np.testing.assert_allclose(run_ort(found, {"x": x, "y_grad": seed})["x_grad"], expected, rtol=1e-12)
