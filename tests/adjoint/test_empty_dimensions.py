"""Dimensions of length 0 inside loops: a batch of none, a feature vector without features."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.oracle import check_emitted, run_ort

PLANS: dict[str, dict[str, Any]] = {
    "taped": {"plan": "taped"},
    "checkpointed": {"plan": "checkpointed", "segment": 2},
    "uneven": {"plan": "checkpointed", "segment": 3},
    "three_levels": {"plan": "checkpointed", "segment": 2, "levels": 3},
    "found_by_the_run": {"plan": "checkpointed", "segment": 0},
}


def recurrence(length: int | str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    rnn (double[{length}, B, N] xs, double[N, K] w, double[B, K] h)
        => (double[B, K] last, double[{length}, B, K] all) {{
        last, all = Scan <num_scan_inputs = 1,
            body = step (double[B, K] s, double[B, N] x) => (double[B, K] next, double[B, K] out) {{
                p = MatMul (x, w)
                q = Add (p, s)
                next = Tanh (q)
                out = Sin (q)
            }}
        > (h, xs)
    }}""")


def gathered(axis: int) -> onnx.ModelProto:
    """The same as a Loop that reads its row, which ONNX Runtime does for empty ones along any axis."""
    whole = "T, B, N" if axis == 0 else "B, T, N"
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    rnn (double[{whole}] xs, double[N, K] w, double[B, K] h) => (double[B, K] last, double[T, B, K] all)
        <int64 steps = {{4}}> {{
        last, all = Loop (steps, , h) <
            body = step (int64 i, bool go, double[B, K] s) => (bool on, double[B, K] next, double[B, K] out) {{
                on = Identity (go)
                x = Gather <axis = {axis}> (xs, i)
                p = MatMul (x, w)
                q = Add (p, s)
                next = Tanh (q)
                out = Sin (q)
            }}
        >
    }}""")


MODELS = {
    "scan": recurrence(4),
    "scan_symbolic": recurrence("T"),
    "loop": gathered(0),
    "loop_columns": gathered(1),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("form", MODELS)
@pytest.mark.parametrize(("b", "n", "k"), [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0), (1, 2, 2)])
def test_gradients_have_their_shapes(plan: str, form: str, b: int, n: int, k: int) -> None:
    emitted = cfad.vjp(MODELS[form], **PLANS[plan]).proto()
    check_emitted(emitted)
    generator = np.random.default_rng(7)
    xs, w, h = (generator.standard_normal(shape) for shape in ((4, b, n), (n, k), (b, k)))
    seeds = {"last_grad": np.ones((b, k)), "all_grad": np.ones((4, b, k))}
    turned = xs.swapaxes(0, 1).copy() if form == "loop_columns" else xs
    found = run_ort(emitted, {"xs": turned, "w": w, "h": h, **seeds})
    ct, by_xs, by_w, states = np.ones((b, k)), np.zeros_like(xs), np.zeros_like(w), [h]
    for x in xs:
        states.append(np.tanh(x @ w + states[-1]))
    for t in reversed(range(4)):
        inside = xs[t] @ w + states[t]
        ct = ct * (1 - np.tanh(inside) ** 2) + np.cos(inside)
        by_xs[t], by_w = ct @ w.T, by_w + xs[t].T @ ct
    np.testing.assert_allclose(found["h_grad"], ct, rtol=1e-10)
    np.testing.assert_allclose(found["w_grad"], by_w, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found["xs_grad"], by_xs.swapaxes(0, 1) if turned is not xs else by_xs, rtol=1e-10)
