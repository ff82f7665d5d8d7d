"""Rows that a loop writes into a tensor are stacked, and written behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.write_rows import WriteRowsPass
from tests.execution import run_in_onnxruntime
from tests.rewriters.check_pass import assert_pass_keeps_meaning

RNG = np.random.default_rng(5)
FEEDS = {"x": RNG.uniform(0.3, 1, (6, 3)), "y0": RNG.standard_normal((6, 3)), "h0": np.full(3, 0.7), "b": np.asarray(1)}
TO = "m = Reshape (i, pair) t = Unsqueeze (s, axis) w = ScatterND (v, m, t)"
# How an exporter finds the place i of the row in iteration k, or by the counter j.
WRITES: dict[str, tuple[str, Callable[[int], int]]] = {
    "counter": (f"i = Identity (j) {TO}", lambda k: k),
    "ahead": (f"i = Add (k, two) {TO}", lambda k: k + 2),
    "two-steps": (f"i = Mul (k, two) {TO}", lambda k: 2 * k),
    "reversed": (f"i = Sub (five, k) {TO}", lambda k: 5 - k),
    "reversed-negatively": (f"i = Sub (minus, j) {TO}", lambda k: -1 - k),
    "from-the-last": (f"i = Sub (last, j) {TO}", lambda k: 5 - k),
    "a-row-without-axis": ("i = Sub (five, k) m = Reshape (i, ones) w = ScatterND (v, m, s)", lambda k: 5 - k),
    "a-row-from-outside": (
        "i = Sub (five, k) m = Reshape (i, pair) w = ScatterND (v, m, c)",
        lambda k: 5 - k,
    ),
}
ADDED = TO.replace("ScatterND", 'ScatterND <reduction = "add">')
STAYING = {
    "added": f"i = Identity (j) {ADDED}",
    "read-as-well": f"i = Identity (j) g = Gather (v, i) s2 = Add (s, g) {TO.replace('(s,', '(s2,')}",
    "behind": f"i = Sub (k, one) {TO}",
    "around": f"i = Sub (two, k) {TO}",
    "from-an-input": f"i = Add (b, k) {TO}",
    "always-there": f"i = Identity (two) {TO}",
}


def text(write: str, *, trips: str = "{4}", stop: str | None = None) -> str:
    again = "again = Identity (go)" if stop is None else f"k1 = Add (k, one) again = Less (k1, {stop})"
    return f"""(double[6, 3] x, double[6, 3] y0, double[3] h0, int64 b) => (double[6, 3] y, double[3] h)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 three = {{3}}, int64 five = {{5}},
         int64 minus = {{-1}}, int64 n = {trips}, int64[1] axis = {{0}}, int64[1] ones = {{1}},
         int64[2] pair = {{1, 1}}, double[1, 3] c = {{1, 2, 3}}> {{
        dims = Shape (x)
        size = Gather (dims, zero)
        last = Sub (size, one)
        end, y, h = Loop (n, , zero, y0, h0) <body = step
            (int64 k, bool go, int64 j, double[6, 3] v, double[3] p) =>
            (bool again, int64 next, double[6, 3] w, double[3] q) {{
            {again}
            next = Add (j, one)
            r = Gather (x, k)
            z = Mul (p, r)
            q = Cos (z)
            s = Sin (z)
            {write}
        }}>
    }}"""


def making(model: ir.Model, kept: tuple[str, ...] = ()) -> WriteRowsPass:
    infer_types(model)
    return WriteRowsPass(kept)


def carries(model: ir.Model) -> int:
    """How many carries the loop has."""
    return len(next(n for n in model.graph if n.op_type == "Loop").inputs) - 2


@pytest.mark.parametrize("stop", [None, "three"])
@pytest.mark.parametrize("trips", ["{0}", "{3}"])
@pytest.mark.parametrize("form", WRITES)
def test_row_is_written_behind_the_loop(form: str, trips: str, stop: str | None) -> None:
    found = assert_pass_keeps_meaning(making, text(WRITES[form][0], trips=trips, stop=stop), FEEDS)
    assert carries(found) == 2


@pytest.mark.parametrize("form", STAYING)
def test_what_may_be_something_else_stays(form: str) -> None:
    model = assert_pass_keeps_meaning(making, text(STAYING[form]), FEEDS, modifies=False)
    assert carries(model) == 3


@pytest.mark.parametrize("name", ["v", "w", "y"])
def test_carry_that_is_named_stays(name: str) -> None:
    write = text(WRITES["reversed"][0])
    assert_pass_keeps_meaning(lambda m: making(m, (name,)), write, FEEDS, modifies=False)


def test_place_outside_of_the_tensor_stays_an_error() -> None:
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g {text(WRITES["ahead"][0], trips="{5}")}'
    )
    gradient = cfad.vjp(proto, wrt=["x"], outputs=["y"], plan="taped").proto()
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_in_onnxruntime(gradient, {**FEEDS, "y_grad": FEEDS["y0"]})


PLANS: list[dict[str, Any]] = [
    {"plan": "taped"},
    {"plan": "checkpointed", "segment": 2},
    {"plan": "checkpointed", "segment": 1, "levels": 3},
    {"plan": "unrolled"},
]


@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize(("trips", "stop"), [(0, None), (3, None), (4, 3)])
@pytest.mark.parametrize("form", [form for form in WRITES if form != "a-row-from-outside"])
def test_gradient_of_what_was_written(form: str, trips: int, stop: int | None, options: dict[str, Any]) -> None:
    """Against the derivative written out: with z = p x, the row sin z and the carry cos z."""
    write, place = WRITES[form]
    if options["plan"] == "unrolled" and stop is not None:
        pytest.skip("a loop with a condition is not unrolled")
    body = text(write, trips=f"{{{trips}}}", stop=None if stop is None else "three")
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {body}')
    gradient = cfad.vjp(proto, wrt=["x", "y0", "h0"], outputs=["y", "h"], **options)
    loops = [node for node in gradient.model.graph.all_nodes() if node.op_type in ("Loop", "Scan")]
    assert not [n for loop in loops for n in loop.attributes["body"].as_graph() if n.op_type == "ScatterND"]
    by_y, ct = RNG.standard_normal((6, 3)), RNG.standard_normal(3)
    found = run_in_onnxruntime(gradient.proto(), {**FEEDS, "y_grad": by_y, "h_grad": ct})
    y, p, tape = FEEDS["y0"].copy(), FEEDS["h0"], list[tuple[np.ndarray, np.ndarray]]()
    runs = trips if stop is None else min(trips, stop)
    for k in range(runs):
        tape.append((p, FEEDS["x"][k]))
        y[place(k)] = np.sin(p * FEEDS["x"][k])
        p = np.cos(p * FEEDS["x"][k])
    by_x = np.zeros((6, 3))
    for k, (before, x) in reversed(list(enumerate(tape))):
        slope = np.cos(before * x) * by_y[place(k)] - np.sin(before * x) * ct
        by_x[k], ct = slope * before, slope * x
        by_y[place(k)] = 0
    expected = {"y": y, "h": p, "x_grad": by_x, "y0_grad": by_y, "h0_grad": ct}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-14, err_msg=name)
