"""Loops that carry optional lists, and lists whose elements do not have one rank: right, or refused with what helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

OPTIONAL = """g (float[3] x, int64 n) => (float[3] y) <int64 last = {-1}> {
    s = SequenceConstruct (x)
    o = Optional (s)
    r = Loop (n, , o) <body = body (int64 i, bool go, optional(seq(float[3])) e) => (bool on, seq(float[3]) m) {
        on = Identity (go)
        full = OptionalHasElement (e)
        l = If (full) <
            then_branch = some () => (seq(float[3]) a) { a = OptionalGetElement (e) },
            else_branch = none () => (seq(float[3]) b) { b = SequenceEmpty () }
        >
        minus = Constant <value = int64 {-1}> ()
        t = SequenceAt (l, minus)
        u = Sin (t)
        m = SequenceInsert (l, u)
    }>
    y = SequenceAt (r, last)
}"""
"""The last element after n iterations is sin applied n times to x."""

MIXED = """g (float[3] x, int64 n, int64 k) => (float y) {
    e = SequenceConstruct (x)
    r, z = Loop (n, , e, x) <body = body (int64 i, bool go, seq(float) l, float[3] a) =>
        (bool on, seq(float) m, float[3] b) {
        on = Identity (go)
        b = Sin (a)
        s = ReduceSum <keepdims = 0> (b)
        two = Constant <value = int64 {2}> ()
        zero = Constant <value = int64 {0}> ()
        odd = Mod (i, two)
        even = Equal (odd, zero)
        w = If (even) <
            then_branch = one () => (float u) { u = Sin (s) },
            else_branch = all () => (float v) { v = Cos (b) }
        >
        old = SequenceAt (l, i)
        q = Sin (old)
        f = ReduceSum <keepdims = 0> (q)
        p = Mul (w, f)
        m = SequenceInsert (l, p)
    }>
    o = SequenceAt (r, k)
    y = ReduceSum <keepdims = 0> (o)
}"""
"""The list grows by a scalar or a vector, made from the element before."""


def mixed() -> onnx.ModelProto:
    proto = model(MIXED)
    body = next(node for node in proto.graph.node if node.op_type == "Loop").attribute[0].g
    for node in body.node:
        if node.op_type == "If":
            for branch in node.attribute:
                branch.g.output[0].type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("trips", [1, 3])
def test_optional_list_is_carried_as_its_list(plan: str, trips: int) -> None:
    proto = cfad.vjp(model(OPTIONAL), plan=plan).proto()
    check_emitted(proto)
    x, ct = np.array([0.4, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -3.0], np.float32)
    expected, value = ct.astype(np.float64), x.astype(np.float64)
    for _ in range(trips):
        expected, value = expected * np.cos(value), np.sin(value)
    found = run_ort(proto, {"x": x, "n": np.array(trips), "y_grad": ct})
    np.testing.assert_allclose(found["y"], value, rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)


def test_optional_that_may_be_empty_is_refused_with_what_helps() -> None:
    text = OPTIONAL.replace("float[3] x,", "float[3] x, optional(seq(float[3])) o,").replace("o = Optional (s)", "")
    text = text.replace("u = Sin (t)", "u = Mul (t, x)")
    with pytest.raises(cfad.UnsupportedOp, match="an optional that may be empty is not kept. Carry its content"):
        cfad.vjp(model(text), wrt=["x"])
    cfad.vjp(model(text), wrt=["x"], stop_gradient=["u"])


def test_optional_list_of_elements_of_any_shape_is_refused_with_what_helps() -> None:
    text = OPTIONAL.replace("seq(float[3])", "seq(float)").replace("u = Sin (t)", "u = Mul (t, x)")
    with pytest.raises(cfad.UnsupportedOp, match="an optional that may be empty is not kept. Carry its content"):
        cfad.vjp(model(text), wrt=["x"])


def _last_mixed(x: np.ndarray[Any, Any], trips: int) -> float:
    items, a = [x], x
    for i in range(trips):
        a = np.sin(a)
        w = np.sin(a.sum()) if i % 2 == 0 else np.cos(a)
        items.append(w * np.sin(items[i]).sum())
    return float(np.sum(items[trips]))


def test_list_of_elements_without_a_common_rank_is_taped_as_the_message_says() -> None:
    with pytest.raises(cfad.UnsupportedOp, match="do not have one rank.*Choose taped for this loop"):
        cfad.vjp(mixed(), wrt=["x"], plan="checkpointed")
    x, trips, step = np.array([0.4, -1.0, 0.7]), 3, 1e-6
    feeds = {"x": x.astype(np.float32), "n": np.array(trips), "k": np.array(trips), "y_grad": np.array(1, np.float32)}
    found = run_ort(cfad.vjp(mixed(), wrt=["x"], plan="taped").proto(), feeds)["x_grad"]
    expected = [(_last_mixed(x + d, trips) - _last_mixed(x - d, trips)) / (2 * step) for d in np.eye(3) * step]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    cfad.vjp(mixed(), wrt=["x"], plan="checkpointed", stop_gradient=["p"])
