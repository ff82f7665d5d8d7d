"""Loops that run zero times: nothing of their bodies may run, in front of them neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.oracle import check_emitted, run_ort

PLANS: dict[str, dict[str, Any]] = {
    "taped": {"plan": "taped"},
    "checkpointed": {"plan": "checkpointed", "segment": 2},
    "three_levels": {"plan": "checkpointed", "segment": 2, "levels": 3},
    "masked": {"target": "cuda"},
}
# What reads j or divides by n, from outside alone: it fails where the loop has nothing to do.
INVARIANT = {
    "index": "e = Gather (x, j)",
    "divisor": "q = Div (j, n)  k = Mod (q, three)  e = Gather (x, k)",
    "size": "b = Unsqueeze (j, zero)  c = Slice (x, zero, b)  d = Reshape (c, seven)  e = ReduceSum <keepdims = 0> (d)",
}


def looped(what: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    none (double[7] x, double s, int64 n, int64 j) => (double y)
        <int64 three = {{3}}, int64[1] zero = {{0}}, int64[1] seven = {{7}}> {{
        y = Loop (n, , s) <body = step (int64 i, bool go, double h) => (bool on, double next) {{
            on = Identity (go)
            {INVARIANT[what]}
            t = Mul (h, e)
            next = Sin (t)
        }}>
    }}""")


@pytest.mark.parametrize("what", INVARIANT)
@pytest.mark.parametrize("plan", PLANS)
def test_what_does_not_change_fails_only_where_it_would(plan: str, what: str) -> None:
    gradient = cfad.vjp(looped(what), **PLANS[plan]).proto()
    check_emitted(gradient)
    feeds = {"x": np.arange(1.0, 8.0), "s": np.asarray(0.5), "y_grad": np.asarray(3.0)}
    none = run_ort(gradient, {**feeds, "n": np.asarray(0), "j": np.asarray(9 if what != "size" else 2)})
    assert (none["y"], none["s_grad"]) == (0.5, 3.0)
    np.testing.assert_array_equal(none["x_grad"], np.zeros(7))
    one = run_ort(gradient, {**feeds, "n": np.asarray(1), "j": np.asarray(1 if what != "size" else 7)})
    read = {"index": [1], "divisor": [1], "size": range(7)}[what]
    slope = np.cos(0.5 * sum(feeds["x"][k] for k in read)) * 3
    np.testing.assert_allclose(one["s_grad"], slope * sum(feeds["x"][k] for k in read), rtol=1e-12)
    np.testing.assert_allclose(one["x_grad"], [slope * 0.5 * (k in read) for k in range(7)], rtol=1e-12)


@pytest.mark.parametrize("what", INVARIANT)
def test_tangents_too(what: str) -> None:
    derived = cfad.jvp(looped(what)).proto()
    feeds = {"x": np.ones(7), "s": np.asarray(0.5), "n": np.asarray(0), "j": np.asarray(9 if what != "size" else 2)}
    found = run_ort(derived, {**feeds, "x_tangent": np.ones(7), "s_tangent": np.asarray(2.0)})
    assert (found["y"], found["y_tangent"]) == (0.5, 2.0)


POLES = {  # what reads log(z), and how often the loop runs so that nothing does
    "captured": ("h0", "next = Add (h, x)", 0),
    "read_beside_a_branch": ("h0", "next = Add (h, x)", 0),
    "replaced": ("x", "next = Identity (h0)", 2),
    "replaced_in_one_branch": (
        "x",
        """c = Less (i, n)
        next = If (c) <then_branch = t () => (double[2] a) { a = Identity (h0) },
                       else_branch = e () => (double[2] b) { b = Identity (h) }>""",
        1,
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("reader", POLES)
def test_a_pole_in_front_of_a_loop_that_does_not_read_it_is_cut(reader: str, plan: str) -> None:
    initial, body, trips = POLES[reader]
    beside = reader == "read_beside_a_branch"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    pole (double[2] z, double[2] h0, int64 n, bool p) => (double[2] y) {{
        x = Log (z)
        looped = Loop (n, , {initial}) <body = step (int64 i, bool go, double[2] h) => (bool on, double[2] next) {{
            on = Identity (go)
            {body}
        }}>
        {
        "picked = If (p) <then_branch = t () => (double[2] r) { r = Mul (x, x) }, "
        "else_branch = e () => (double[2] q) { q = Identity (h0) }>"
        if beside
        else ""
    }
        y = {"Add (looped, picked)" if beside else "Identity (looped)"}
    }}""")
    gradient = cfad.vjp(model, wrt=["z"], **PLANS[plan]).proto()
    check_emitted(gradient)
    feeds = {"z": np.zeros(2), "h0": np.ones(2), "n": np.asarray(trips), "p": np.asarray(False), "y_grad": np.ones(2)}
    feeds = {port.name: feeds[port.name] for port in gradient.graph.input}
    np.testing.assert_array_equal(run_ort(gradient, feeds)["z_grad"], np.zeros(2))
    runs = {**feeds, "z": np.asarray([0.5, 2.0]), "n": np.asarray(1 if initial == "h0" else 0)}
    np.testing.assert_allclose(run_ort(gradient, runs)["z_grad"], [2.0, 0.5], rtol=1e-12)


def test_a_pole_that_every_iteration_reads_is_infinite() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    pole (double[2] z, int64 n) => (double[2] y) {
        x = Log (z)
        y = Loop (n, , x) <body = step (int64 i, bool go, double[2] h) => (bool on, double[2] next) {
            on = Identity (go)
            next = Add (h, h)
        }>
    }""")
    gradient = cfad.vjp(model, wrt=["z"]).proto()
    assert "Where" not in {node.op_type for node in gradient.graph.node}  # no guard where there is nothing to cut
    found = run_ort(gradient, {"z": np.asarray([0.0, 0.5]), "n": np.asarray(2), "y_grad": np.ones(2)})
    np.testing.assert_array_equal(found["z_grad"], [np.inf, 8.0])


def test_nan_behind_a_pole_stays_where_no_branch_reads_it() -> None:
    """Sin has no pole, but what it meets is NaN; one branch reads it in a loop that does not run, the other in vain."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    pole (double[2] z, double[2] w, int64 n, bool p) => (double[2] y) {
        x = Log (z)
        d = Sub (x, x)
        s = Sin (d)
        y = If (p) <
            then_branch = t () => (double[2] a) {
                a = Loop (n, , w) <body = step (int64 i, bool go, double[2] h) => (bool on, double[2] next) {
                    on = Identity (go)
                    next = Mul (h, s)
                }>
            },
            else_branch = e () => (double[2] b) {
                unread = Cos (s)
                b = Neg (w)
            }>
    }""")
    gradient = cfad.vjp(model, wrt=["z", "w"]).proto()
    check_emitted(gradient)
    feeds = {"z": np.zeros(2), "w": np.ones(2), "n": np.asarray(0), "y_grad": np.ones(2)}
    for taken, slope in ((True, 1), (False, -1)):
        found = run_ort(gradient, {**feeds, "p": np.asarray(taken)})
        np.testing.assert_array_equal(found["z_grad"], np.zeros(2))
        np.testing.assert_array_equal(found["w_grad"], np.full(2, slope))
