"""Rows that a loop reads become one Gather by the iteration number, whose cotangents are stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.read_rows import ReadRowsPass
from tests.execution import run_in_onnxruntime
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.random.default_rng(3).standard_normal((6, 4))
# How an exporter reads a row r of x by the iteration number k, or by the counter j, which starts from first.
SLICED = "s = Unsqueeze (i, axis) i1 = Add (i, one) e = Unsqueeze (i1, axis) a = Slice (x, s, e, axis) "
READS: dict[str, tuple[str, Callable[[int], int]]] = {
    "counter": ("r = Gather (x, j)", lambda k: k),
    "ahead": ("i = Add (k, one) r = Gather (x, i)", lambda k: k + 1),
    "counter-ahead": ("i = Add (one, j) i2 = Sub (i, zero) r = Gather (x, i2)", lambda k: k + 1),
    "scaled-by-one": ("i = Mul (k, one) i2 = Add (i, two) r = Gather (x, i2)", lambda k: k + 2),
    "slice": (
        (
            "s = Unsqueeze (k, axis) k2 = Add (k, one) e = Unsqueeze (k2, axis) a = Slice (x, s, e, axis) "
            "r = Squeeze (a, axis)"
        ),
        lambda k: k,
    ),
    "slice-of-counter": (
        (
            "s = Unsqueeze (j, axis) k2 = Add (j, one) e = Unsqueeze (k2, axis) "
            "a = Slice (x, s, e, axis) r = Squeeze (a, axis)"
        ),
        lambda k: k,
    ),
    "slice-by-a-billion": (
        (
            "i = Cast <to = 6> (j) s = Unsqueeze (i, axis) s2 = Concat <axis = 0> (s) "
            "a = Slice (x, s2, many, axis32, many) r = Squeeze (a, axis)"
        ),
        lambda k: k,
    ),
    "gather-of-one": ("s = Unsqueeze (k, axis) a = Gather (x, s) r = Squeeze (a, axis)", lambda k: k),
    "gather-of-one-reshaped": ("s = Reshape (j, ones) a = Gather (x, s) r = Squeeze (a, axis)", lambda k: k),
    "gather-of-one-elsewhere": ("s = Unsqueeze (k, axis) a = Gather (x, s) r = Reshape (a, row)", lambda k: k),
    "gather-nd": ("i = Sub (four, k) s = Unsqueeze (i, axis) r = GatherND (x, s)", lambda k: 4 - k),
    "columns": ("r = Gather <axis = 1> (u, j)", lambda k: k),
    "columns-reversed": ("i = Sub (four, j) r = Gather <axis = 1> (u, i)", lambda k: 4 - k),
    "behind": ("i = Sub (k, one) r = Gather (x, i)", lambda k: k - 1),
    "two-steps-on": ("i = Mul (k, two) i1 = Sub (i, one) i2 = Add (i1, one) r = Gather (x, i2)", lambda k: 2 * k),
    "reversed": ("i = Sub (four, k) r = Gather (x, i)", lambda k: 4 - k),
    "reversed-negatively": ("i = Neg (k) i1 = Sub (i, one) r = Gather (x, i1)", lambda k: -1 - k),
    "reversed-around": ("i = Sub (one, j) r = Gather (x, i)", lambda k: 1 - k),
    "two-steps-back": ("i = Mul (k, two) i2 = Sub (five, i) r = Gather (x, i2)", lambda k: 5 - 2 * k),
    "from-the-last": ("i = Sub (last, k) r = Gather (x, i)", lambda k: 5 - k),
    "from-the-last-of-the-body": (
        "sh = Shape (x) m = Gather (sh, zero) l = Sub (m, one) i = Sub (l, k) r = Gather (x, i)",
        lambda k: 5 - k,
    ),
    "from-an-input": ("i = Add (b, k) r = Gather (x, i)", lambda k: k - 2),
    "back-from-an-input": ("i = Sub (b, k) r = Gather (x, i)", lambda k: -2 - k),
    "slice-reversed": ("i = Sub (four, k) " + SLICED + "r = Squeeze (a, axis)", lambda k: 4 - k),
    "slice-not-squeezed": ("i = Add (k, one) " + SLICED + "r = Reshape (a, row)", lambda k: k + 1),
    "slice-reversed-not-squeezed": ("i = Sub (four, k) " + SLICED + "r = Reshape (a, row)", lambda k: 4 - k),
}
STAYING = {
    "as-wanted": "r = Gather (x, k)",
    "two-steps-below-zero": "i = Mul (k, two) i1 = Sub (i, one) r = Gather (x, i1)",
    "two-steps-back-around": "i = Mul (k, two) i1 = Sub (one, i) r = Gather (x, i1)",
    "squares": "i = Mul (k, j) r = Gather (x, i)",
    "slice-that-is-cut": "s = Unsqueeze (k, axis) i = Add (k, five) e = Unsqueeze (i, axis) "
    "a = Slice (x, s, e, axis) r = ReduceSum <keepdims = 0> (a, axis)",
    "slice-of-a-varying-number": "s = Unsqueeze (k, axis) i = Add (k, k) i1 = Add (i, one) e = Unsqueeze (i1, axis) "
    "a = Slice (x, s, e, axis) r = ReduceSum <keepdims = 0> (a, axis)",
    "backwards": "s = Unsqueeze (k, axis) a = Slice (x, s, least, axis, minus) c = Slice (a, axis, ones, axis) "
    "r = Squeeze (c, axis)",
    "of-the-body": "x2 = Sin (x) r = Gather (x2, j)",
}


def text(read: str, *, trips: int = 4, step: str = "one", first: str = "zero") -> str:
    return f"""(double[6, 4] x, double[4] h0, int64 b) => (double[4] h, int64 end)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 n = {{{trips}}}, int64[1] axis = {{0}},
         int64 four = {{4}}, int64 five = {{5}},
         int32[1] axis32 = {{0}}, int32[1] many = {{1000000000}}, int64[1] ones = {{1}}, int64[1] row = {{4}},
         int64[1] least = {{-9223372036854775808}}, int64[1] minus = {{-1}}> {{
        u = Transpose <perm = [1, 0]> (x)
        dims = Shape (x)
        size = Gather (dims, zero)
        last = Sub (size, one)
        end, h = Loop (n, , {first}, h0) <body = step (int64 k, bool go, int64 j, double[4] p) =>
            (bool again, int64 next, double[4] q) {{
            again = Identity (go)
            next = Add (j, {step})
            {read}
            z = Mul (p, r)
            q = Cos (z)
        }}>
    }}"""


def making(model: ir.Model, kept: tuple[str, ...] = ()) -> ReadRowsPass:
    infer_types(model)
    return ReadRowsPass(kept)


def rows(model: ir.Model) -> int:
    """How many nodes are a Gather by the iteration number."""
    body = next(n for n in model.graph if n.op_type == "Loop").attributes["body"].as_graph()
    return sum(n.op_type == "Gather" and n.inputs[1] is body.inputs[0] for n in body)


FEEDS = {"x": X, "h0": np.ones(4), "b": np.asarray(-2)}


@pytest.mark.parametrize("form", READS)
def test_row_becomes_a_gather_by_the_iteration_number(form: str) -> None:
    assert rows(assert_pass_keeps_meaning(making, text(READS[form][0], trips=3), FEEDS)) == 1


@pytest.mark.parametrize("form", STAYING)
def test_what_may_be_something_else_stays(form: str) -> None:
    model = assert_pass_keeps_meaning(making, text(STAYING[form], trips=3), FEEDS, modifies=False)
    assert rows(model) == (form == "as-wanted")


def test_counter_that_starts_later_or_skips() -> None:
    later = assert_pass_keeps_meaning(making, text(READS["counter"][0], first="two"), FEEDS)
    assert rows(later) == 1
    assert "Slice" in operators(later)
    assert rows(assert_pass_keeps_meaning(making, text(READS["counter"][0], trips=3, step="two"), FEEDS)) == 1
    squares = text(READS["counter"][0], trips=3, step="j", first="one")
    assert_pass_keeps_meaning(making, squares, FEEDS, modifies=False)


def test_slice_whose_value_is_named_stays() -> None:
    kept = assert_pass_keeps_meaning(lambda m: making(m, ("a",)), text(READS["slice"][0]), FEEDS, modifies=False)
    assert rows(kept) == 0


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_constants_of_other_operators_are_no_axes(number: str) -> None:
    """Such as the -inf that masks scores, and the weight of a product: only a Squeeze has axes."""
    read = f"f = Constant <value = double {{{number}}}> () r1 = Gather (x, j) r2 = Add (r1, f) r = Neg (r2)"
    found = assert_pass_keeps_meaning(making, text(read), FEEDS)
    assert rows(found) == 1


PLANS: list[dict[str, Any]] = [
    {"plan": "taped"},
    {"plan": "checkpointed", "segment": 2},
    {"plan": "checkpointed", "segment": 1},  # of which there is a whole number: Scans, over the first rows
    {"plan": "unrolled"},
]


@pytest.mark.parametrize("trips", [0, 3])
@pytest.mark.parametrize("form", READS)
def test_cotangents_of_rows_are_stacked(form: str, trips: int) -> None:
    """Against the derivative written out: dh/dp = -sin(p r) r and dh/dr = -sin(p r) p."""
    read, place = READS[form]
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text(read, trips=trips)}')
    p, tape = np.ones(4), list[tuple[np.ndarray, np.ndarray]]()
    for i in range(trips):
        tape.append((p, X[place(i)]))
        p = np.cos(p * tape[-1][1])
    ct, expected = 2 * np.ones(4), np.zeros_like(X)
    for i, (before, row) in reversed(list(enumerate(tape))):
        slope = -np.sin(before * row) * ct
        expected[place(i)] += slope * before
        ct = slope * row
    for options in PLANS:
        gradient = cfad.vjp(proto, outputs=["h"], **options)
        loops = [node for node in gradient.model.graph.all_nodes() if node.op_type in ("Loop", "Scan")]
        inside = {n.op_type for loop in loops for n in loop.attributes["body"].as_graph()}
        assert inside.isdisjoint(("ScatterElements", "ScatterND")), options
        found = run_in_onnxruntime(gradient.proto(), {**FEEDS, "h_grad": 2 * np.ones(4)})
        np.testing.assert_allclose(found["h"], p, rtol=1e-12)
        np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found["h0_grad"], ct, rtol=1e-12)


@pytest.mark.parametrize("options", PLANS, ids=str)
def test_filter_that_an_inner_loop_reads_backwards(options: dict[str, Any]) -> None:
    """x[t - j] by two iteration numbers, counted from the end below zero, against the sums written out."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (double[6, 4] x, double[3, 4] w, double[4] h0) => (double[4] h) <int64 n = {6}, int64 taps = {3}> {
        h = Loop (n, , h0) <body = outer (int64 t, bool go, double[4] p) => (bool again, double[4] q) {
            again = Identity (go)
            q = Loop (taps, , p) <body = inner (int64 j, bool going, double[4] u) => (bool on, double[4] v) {
                on = Identity (going)
                i = Sub (t, j)
                r = Gather (x, i)
                tap = Gather (w, j)
                term = Mul (r, tap)
                v = Add (u, term)
            }>
        }>
    }""")
    w = np.random.default_rng(4).standard_normal((3, 4))
    seed = np.array([1.0, -2.0, 0.5, 3.0])
    gradient = cfad.vjp(proto, wrt=["x", "w"], **options).proto()
    found = run_in_onnxruntime(gradient, {"x": X, "w": w, "h0": np.ones(4), "h_grad": seed})
    by_x, by_w = np.zeros_like(X), np.zeros_like(w)
    for t in range(6):
        for j in range(3):
            by_x[t - j] += seed * w[j]
            by_w[j] += seed * X[t - j]
    np.testing.assert_allclose(found["x_grad"], by_x, rtol=1e-12)
    np.testing.assert_allclose(found["w_grad"], by_w, rtol=1e-12)


@pytest.mark.parametrize(
    ("length", "width", "stacked"),
    [(4, 20_000, True), (5, 20_000, False), (5, 1_600, True), (5, "M", False)],
)
def test_windows_that_would_take_much_memory_stay_slices(length: int, width: int | str, stacked: bool) -> None:
    """2,000 windows of five rows of 20,000 numbers of four bytes are 763 MiB, five times the tensor."""
    model = ir.from_proto(
        onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[2010, {width}] x, float[{width}] h0) => (float[{width}] h)
        <int64 n = {{2000}}, bool go = {{1}}, int64[1] axis = {{0}}, int64 length = {{{length}}}> {{
            h = Loop (n, go, h0) <body = step (int64 i, bool c, float[{width}] a) => (bool d, float[{width}] b) {{
                d = Identity (c)
                s = Unsqueeze (i, axis)
                after = Add (i, length)
                e = Unsqueeze (after, axis)
                window = Slice (x, s, e, axis)
                mean = ReduceMean <keepdims = 0> (window, axis)
                b = Add (a, mean)
            }}>
        }}""")
    )
    infer_types(model)
    assert ReadRowsPass()(model).modified == stacked
