"""What docs/runtime-notes.md says of ONNX Runtime: models that would walk into a trap, differentiated and run.

Expected numbers are closed forms, written in NumPy.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnx_cfad as cfad
from tests.emitted import EVERY_PLAN, MODELS, OPTIMISED, PLANS, POWER, X, emitted, gradient, nodes_of, subgraphs
from tests.onnx_text import model
from tests.oracle import run_ort

# Bodies that return an input, or one value twice.


@OPTIMISED
def test_scan_body_that_returns_one_value_twice(optimise: bool) -> None:
    text = """m (double[3] x, double[2,3] xs) => (double[3] y, double[2,3] rows) {
        y, rows = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] s) => (double[3] n, double[3] n)
            { n = Mul (h, s) }> (x, xs)
    }"""
    xs = np.asarray([[2.0, 0.5, 1.0], [3.0, -1.0, 4.0]])
    feeds = {"x": X, "xs": xs, "y_grad": np.ones(3), "rows_grad": np.full((2, 3), 10.0)}
    found = run_ort(gradient(text), feeds, optimise=optimise)
    np.testing.assert_array_equal(found["y"], X * xs[0] * xs[1])
    np.testing.assert_array_equal(found["rows"], [X * xs[0], X * xs[0] * xs[1]])
    np.testing.assert_array_equal(found["x_grad"], 11 * xs[0] * xs[1] + 10 * xs[0])
    np.testing.assert_array_equal(found["xs_grad"], [11 * X * xs[1] + 10 * X, 11 * X * xs[0]])


@OPTIMISED
def test_scan_body_that_returns_its_own_input(optimise: bool) -> None:
    text = """m (double[3] x, double[2,3] xs) => (double[3] y, double[2,3] rows) {
        y, rows = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] s) => (double[3] n, double[3] h)
            { n = Mul (h, s) }> (x, xs)
    }"""
    xs = np.asarray([[2.0, 0.5, 1.0], [3.0, -1.0, 4.0]])
    feeds = {"x": X, "xs": xs, "y_grad": np.zeros(3), "rows_grad": np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    found = run_ort(gradient(text), feeds, optimise=optimise)
    np.testing.assert_array_equal(found["rows"], [X, X * xs[0]])
    np.testing.assert_array_equal(found["x_grad"], feeds["rows_grad"][0] + feeds["rows_grad"][1] * xs[0])


@EVERY_PLAN
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_scan_bodies_and_branches_return_values_of_their_own(path: pathlib.Path, plan: str) -> None:
    seen = 0
    for _, node in nodes_of(emitted(path, plan).graph):
        for body in subgraphs(node) if node.op_type in ("Scan", "If") else []:
            made = {name for inner in body.node for name in inner.output}
            made |= {tensor.name for tensor in body.initializer} if node.op_type == "If" else set()
            names = [output.name for output in body.output]
            assert len(set(names)) == len(names), f"{node.name}: {names}"
            assert made.issuperset(names), f"{node.name}: {names}"
            seen += 1
    assert seen


# Reading backwards.


@EVERY_PLAN
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_nothing_is_flipped_by_gathering_a_descending_range(path: pathlib.Path, plan: str) -> None:
    producers = {name: node for _, node in nodes_of(emitted(path, plan).graph) for name in node.output}
    gathers = [node for node in producers.values() if node.op_type == "Gather"]
    read = [producers[node.input[1]].op_type for node in gathers if node.input[1] in producers]
    assert "Range" not in read


@EVERY_PLAN
@pytest.mark.parametrize("length", [1, 3, 7])
def test_scan_that_reads_and_stacks_backwards(length: int, plan: str) -> None:
    """Segments of 3 do not divide 7: the Scan becomes a Loop, which has to flip its input and its stacked output."""
    text = """m (double[2] x, double[N,2] xs) => (double[2] y, double[N,2] rows) {
        y, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
            body = b (double[2] h, double[2] s) => (double[2] n, double[2] r) { n = Mul (h, s)  r = Neg (n) }> (x, xs)
    }"""
    rng = np.random.default_rng(0)
    x, xs = rng.standard_normal(2), rng.standard_normal((length, 2))
    weights = rng.standard_normal((length, 2))
    found = run_ort(gradient(text, plan=plan), {"x": x, "xs": xs, "y_grad": np.zeros(2), "rows_grad": weights})
    tails = np.cumprod(xs[::-1], axis=0)[::-1]  # the product of what was read up to row k, from the end
    np.testing.assert_allclose(found["rows"], -x * tails, rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], -(weights * tails).sum(axis=0), rtol=1e-12)
    expected = [-(weights * x * tails)[: k + 1].sum(axis=0) / xs[k] for k in range(length)]
    np.testing.assert_allclose(found["xs_grad"], expected, rtol=1e-11)


# Loops that do not run, and what their outputs look like.


@EVERY_PLAN
@OPTIMISED
@pytest.mark.parametrize("trips", [0, 1, 7])
def test_reverse_pass_of_a_loop_that_may_not_run(trips: int, optimise: bool, plan: str) -> None:
    """The reverse pass is a Scan, which ONNX Runtime refuses at length zero; the stack of no rows is [0, 3]."""
    w, seed = np.asarray([0.5, -2.0, 1.5]), np.asarray([1.0, 2.0, 4.0])
    feeds = {"x": X, "w": w, "trips": np.asarray(trips), "y_grad": seed, "rows_grad": np.ones((trips, 3))}
    found = run_ort(gradient(POWER, plan=plan), feeds, optimise=optimise)
    powers = w ** np.arange(1, trips + 1)[:, None]
    orders = np.arange(1, trips + 1)[:, None]
    assert found["rows"].shape == (trips, 3)
    np.testing.assert_allclose(found["x_grad"], seed * w**trips + (2 * X * powers**2).sum(axis=0), rtol=1e-12)
    of_y = seed * trips * X * w ** (trips - 1)
    np.testing.assert_allclose(found["w_grad"], of_y + (2 * orders * X**2 * powers**2 / w).sum(axis=0), rtol=1e-12)


def test_row_whose_shape_only_the_run_knows_is_stacked_zero_times() -> None:
    """ONNX Runtime gives the empty stack [0, 0]: the gradients still have the shapes of the inputs."""
    text = """m (double[3] x, int64 trips, int64[1] dims) => (double[3] y, double[K,L] rows) {
        y, rows = Loop (trips, , x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] n, double[L] r)
            { a = Identity (g)  n = Sin (h)  r = Reshape (n, dims) }>
    }"""
    proto = gradient(text)
    for trips in (0, 2):
        feeds = {"x": X, "trips": np.asarray(trips), "dims": np.asarray([3]), "y_grad": np.ones(3)}
        found = run_ort(proto, {**feeds, "rows_grad": np.zeros((trips, 3 if trips else 0))})
        expected = np.ones(3) if trips == 0 else np.cos(X) * np.cos(np.sin(X))
        np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-12)


@EVERY_PLAN
def test_loop_with_omitted_outputs(plan: str) -> None:
    """ONNX Runtime crashes on the original."""
    text = """m (double[2] x, int64 n) => (double[2] y) {
        unused, y, all = Loop (n, , x, x) <
            body = b (int64 i, bool g, double[2] p, double[2] q) => (bool h, double[2] r, double[2] s, double[2] all)
            { h = Identity (g)  r = Add (p, q)  s = Mul (q, x)  all = Neg (p) }>
    }"""
    proto = model(text)
    proto.graph.node[0].output[0] = ""
    proto.graph.node[0].output[2] = ""
    x = np.asarray([0.5, -2.0])
    found = run_ort(cfad.vjp(proto, **PLANS[plan]).proto(), {"x": x, "n": np.asarray(4), "y_grad": np.ones(2)})
    np.testing.assert_allclose(found["y"], x**5, rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], 5 * x**4, rtol=1e-12)


@EVERY_PLAN
@pytest.mark.parametrize("place", ["initializer", "input"])
def test_initial_condition_of_shape_one(place: str, plan: str) -> None:
    """ONNX Runtime refuses the original, whose body declares a scalar."""
    condition = (", bool[1] c", "") if place == "input" else ("", "<bool[1] c = {1}>")
    text = f"""m (double[3] x, int64 n{condition[0]}) => (double[3] y) {condition[1]} {{
        y = Loop (n, c, x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] next)
            {{ a = Identity (g)  next = Mul (h, x) }}>
    }}"""
    more = {"c": np.asarray([True])} if place == "input" else {}
    feeds: dict[str, Any] = {"x": X, "n": np.asarray(4), "y_grad": np.ones(3), **more}
    np.testing.assert_allclose(run_ort(gradient(text, plan=plan), feeds)["x_grad"], 5 * X**4, rtol=1e-12)


# Rounding.


@pytest.mark.parametrize("operator", ["Sin", "Tanh"])
def test_taping_does_not_change_the_last_bits_of_the_primal(operator: str) -> None:
    """The operator that makes a stacked Scan output writes into slices of 56 bytes, which are not aligned."""
    text = f"""m (double[7] x, double[200,7] u) => (double[7] y) {{
        y = Scan <num_scan_inputs = 1, body = b (double[7] h, double[7] s) => (double[7] n)
            {{ p = Add (h, s)  q = {operator} (p)  r = Sin (q)  n = Mul (q, r) }}> (x, u)
    }}"""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal(7), "u": rng.standard_normal((200, 7))}
    proto = gradient(text)
    scans = [node for node in proto.graph.node if node.op_type == "Scan"]
    assert len(scans[0].output) > 1, "nothing is taped, so the test proves nothing"
    np.testing.assert_array_equal(
        run_ort(proto, {**feeds, "y_grad": np.ones(7)})["y"], run_ort(model(text), feeds)["y"]
    )


def test_condition_is_recorded_and_not_computed_again() -> None:
    """Packed and plain kernels round differently, so a recomputed condition could decide otherwise."""
    text = """m (double[3] x) => (double[3] y) <int64 most = {50}, double level = {0.4}> {
        y = Loop (most, , x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] n) {
            n = Sin (h)  s = Mul (n, n)  total = ReduceSum <keepdims = 0> (s)  a = Greater (total, level)
        }>
    }"""
    compared = [node for _, node in nodes_of(gradient(text, plan="checkpointed").graph) if node.op_type == "Greater"]
    assert [node.output[0] for node in compared].count("a") == 1
    assert len([node for node in compared if "level" in node.input]) == 1


# Operators.


def test_pad_gradient_crops_by_negative_pads() -> None:
    """ONNX Runtime takes them; the reference evaluator of onnx 1.23 does not."""
    node = helper.make_node("Pad", ["x", "pads"], ["y"])
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, [dim]) for name, dim in (("x", 5), ("y", 8))]
    pads = numpy_helper.from_array(np.asarray([1, 2]), "pads")
    graph = helper.make_graph([node], "pad", ports[:1], ports[1:], [pads])
    proto = cfad.vjp(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)).proto()
    found = run_ort(proto, {"x": np.arange(5.0), "y_grad": np.arange(8.0)})
    np.testing.assert_array_equal(found["x_grad"], np.arange(1.0, 6.0))
    with pytest.raises(ValueError, match="negative"):
        ReferenceEvaluator(proto).run(None, {"x": np.arange(5.0), "y_grad": np.arange(8.0)})


@OPTIMISED
def test_transpose_beside_a_pad_along_one_axis(optimise: bool) -> None:
    text = """m (double[2,3,4] x) => (double[2,2,4] y)
        <int64[1] one = {1}, int64[1] three = {3}, int64[1] axis = {2}> {
        t = Transpose <perm = [0, 2, 1]> (x)
        s = Slice (t, one, three, axis)
        y = Transpose <perm = [0, 2, 1]> (s)
    }"""
    ct = np.arange(16.0).reshape(2, 2, 4)
    feeds = {"x": np.zeros((2, 3, 4)), "y_grad": ct}
    expected = np.concatenate([np.zeros((2, 1, 4)), ct], 1)
    np.testing.assert_array_equal(run_ort(gradient(text), feeds, optimise=optimise)["x_grad"], expected)


@EVERY_PLAN
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop_body_that_returns_one_list_twice(trips: int, plan: str) -> None:
    text = """g (double[3] x, int64 n) => (double[3] y, int64 length) {
        s = SequenceConstruct (x)
        best, before = Loop (n, , s, s) <
            body = step (int64 i, bool go, seq(double[3]) a, seq(double[3]) b) =>
                (bool on, seq(double[3]) more, seq(double[3]) more) {
                on = Identity (go)
                last = Constant <value = int64 {-1}> ()
                p = SequenceAt (a, last)
                q = SequenceAt (b, last)
                r = Mul (p, q)
                t = Sin (r)
                more = SequenceInsert (b, t)
            }
        >
        minus = Constant <value = int64 {-1}> ()
        y = SequenceAt (before, minus)
        length = SequenceLength (before)
    }"""
    gradient = cfad.vjp(model(text), **PLANS[plan])
    seed = np.asarray([1.0, -2.0, 0.5])
    found = run_ort(gradient.proto(), {"x": X, "n": np.asarray(trips), "y_grad": seed})
    value, slope = X, np.ones(3)
    for _ in range(trips):
        value, slope = np.sin(value * value), np.cos(value * value) * 2 * value * slope
    assert found["length"] == trips + 1
    np.testing.assert_allclose(found["y"], value, rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], seed * slope, rtol=1e-10)


@EVERY_PLAN
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop_body_that_returns_its_iteration_number(trips: int, plan: str) -> None:
    """As a carry, which the next iteration reads an element by, and as a row."""
    gradient = cfad.vjp(model(NUMBERED), **PLANS[plan])
    x, seed = np.asarray([0.3, -0.7, 1.1, 0.4]), np.asarray([1.0, -2.0, 0.5, 1.5])
    found = run_ort(gradient.proto(), {"x": x, "k": np.asarray(3), "n": np.asarray(trips), "y_grad": seed})
    before = [3, *range(trips)]
    np.testing.assert_array_equal(found["last"], before[-1])
    np.testing.assert_array_equal(found["rows"], np.arange(trips))
    np.testing.assert_allclose(found["y"], x + sum(np.sin(x[k]) for k in before[:-1]), rtol=1e-12)
    expected = seed.copy()
    for k in before[:-1]:
        expected[k] += seed.sum() * np.cos(x[k])
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-12)


NUMBERED = """g (double[4] x, int64 k, int64 n) => (double[4] y, int64 last, int64[r] rows) {
    y, last, rows = Loop (n, , x, k) <body = step (int64 i, bool go, double[4] h, int64 before) =>
        (bool on, double[4] next, int64 i, int64 i) {
        on = Identity (go)
        e = Gather (x, before)
        s = Sin (e)
        next = Add (h, s)
    }>
}"""


def test_rank_is_not_the_size_of_a_shape() -> None:
    """The cotangent of b is summed over an axis that only the run knows here; ONNX Runtime knows the shapes."""
    text = """g (double[N] x, double[3] b, double[3, 3] w) => (double[3, 3] y) {
        last = Scan <num_scan_inputs = 1,
            body = step (double[K] h, double[3] row) => (double[3] next) { next = Sin (b) }
        > (x, w)
        t = Exp (last)
        y = Mul (w, t)
    }"""
    b, w = np.asarray([0.1, -0.4, 0.7]), np.arange(9.0).reshape(3, 3)
    found = run_ort(gradient(text), {"x": X, "b": b, "w": w, "y_grad": np.ones((3, 3))})
    np.testing.assert_allclose(found["b_grad"], w.sum(0) * np.exp(np.sin(b)) * np.cos(b), rtol=1e-12)
    sizes = [node for _, node in nodes_of(gradient(text).graph) if node.op_type == "Size"]
    assert not sizes


TURNED = {
    "matrix": ("double[2, 3] a", "t = Transpose (a)  y = MatMul (t, v)"),
    "symbolic": ("double[B, N] a", "t = Transpose (a)  y = MatMul (t, v)"),
    "cast": ("float[2, 3] a", "t = Transpose (a)  w = Cast <to = 11> (t)  y = MatMul (w, v)"),
    "stack": ("double[4, 2, 3] a", "t = Transpose <perm = [0, 2, 1]> (a)  y = MatMul (t, v)"),
}


@OPTIMISED
@pytest.mark.parametrize("form", TURNED)
def test_transposed_matrix_times_a_vector(form: str, optimise: bool) -> None:
    declared, nodes = TURNED[form]
    text = f"g ({declared}, double[B] v) => (double[...] y) {{ {nodes} }}".replace("double[...] y", "double[] y")
    proto = model(text)
    proto.graph.output[0].type.tensor_type.shape.Clear()
    for _ in range(2 if form == "stack" else 1):
        proto.graph.output[0].type.tensor_type.shape.dim.add()
    kind = np.float32 if form == "cast" else np.float64
    a = np.arange(24.0).reshape(4, 2, 3).astype(kind) if form == "stack" else np.arange(6.0).reshape(2, 3).astype(kind)
    v, turned = np.asarray([0.5, -2.0]), a.swapaxes(-1, -2)
    ct = np.ones(turned.shape[:-1])
    found = run_ort(cfad.vjp(proto).proto(), {"a": a, "v": v, "y_grad": ct}, optimise=optimise)
    np.testing.assert_allclose(found["y"], turned @ v, rtol=1e-12)
    np.testing.assert_allclose(found["v_grad"], turned.reshape(-1, 2).sum(0), rtol=1e-12)
    np.testing.assert_allclose(found["a_grad"], np.broadcast_to(v[:, None], a.shape), rtol=1e-6)
    validation = cfad.validate(proto, feeds={"a": a, "v": v})
    assert validation.holds, str(validation)
    assert "a transposed matrix times a vector" in validation.remarks[0]


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
def test_scan_over_columns_of_which_each_is_empty(rows: int, plan: str) -> None:
    """The cotangents of the columns are stacked along axis 1, of which a Scan makes a crash where they are empty."""
    text = """g (double[rows, 3] x, double s) => (double y) {
        y = Scan <num_scan_inputs = 1, scan_input_axes = [1],
            body = step (double h, double[rows] column) => (double next) {
                w = Sin (column)
                total = ReduceSum <keepdims = 0> (w)
                next = Add (h, total)
            }
        > (s, x)
    }"""
    x = np.arange(3.0 * rows).reshape(rows, 3)
    found = run_ort(
        cfad.vjp(model(text), **PLANS[plan]).proto(), {"x": x, "s": np.ones(()), "y_grad": np.full((), 2.0)}
    )
    np.testing.assert_allclose(found["x_grad"], 2 * np.cos(x), rtol=1e-12)
    assert found["s_grad"] == 2.0


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_validate_reads_the_original_as_specified(mode: str) -> None:
    feeds = {"x": np.asarray([0.3, -0.7, 1.1, 0.4]), "k": np.asarray(3), "n": np.asarray(3)}
    found = cfad.validate(model(NUMBERED), feeds=feeds, mode=mode)
    assert found.holds
    assert all(row.identical for row in found.primal)
    (remark,) = found.remarks
    assert "computes 'y', 'last', 'rows' of the original wrongly" in remark


def test_primal_is_the_same_where_nothing_is_fused() -> None:
    text = """g (float[64, 64] x, float[64, 64] w, int64 n) => (float[64, 64] y) {
        y = Loop (n, , x) <body = step (int64 i, bool go, float[64, 64] h) => (bool on, float[64, 64] next) {
            on = Identity (go)
            root = Constant <value = float {1.4142135}> ()
            one = Constant <value = float {1.0}> ()
            half = Constant <value = float {0.5}> ()
            p = MatMul (h, w)
            d = Div (p, root)
            e = Erf (d)
            a = Add (e, one)
            m = Mul (p, a)
            next = Mul (m, half)
        }>
    }"""
    proto = model(text)
    gradient = cfad.vjp(proto, plan="taped").proto()
    generator = np.random.default_rng(3)
    x, w = (generator.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    feeds = {"x": x * 8, "w": w, "n": np.asarray(3)}
    found = run_ort(proto, feeds, optimise=False)["y"]
    assert np.array_equal(found, run_ort(gradient, {**feeds, "y_grad": x}, optimise=False)["y"])
    np.testing.assert_allclose(run_ort(gradient, {**feeds, "y_grad": x})["y"], found, rtol=1e-4, atol=1e-6)


def test_zeros_of_branches_are_not_folded(tmp_path: pathlib.Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    branch (float[20,30] a, float[20,30] b, float[20,30] c, bool p) => (float loss) {
        loss = If (p) <
            then_branch = left () => (float l) { m = Mul (a, b)  l = ReduceSum <keepdims = 0> (m) },
            else_branch = right () => (float r) { n = Sin (c)  r = ReduceSum <keepdims = 0> (n) }>
    }"""
    emitted = cfad.grad(onnx.parser.parse_model(text), loss="loss", wrt=["a", "b", "c"]).proto()
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(emitted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx").graph
    inner = [a.g for node in optimised.node for a in node.attribute if a.HasField("g")]
    assert [node.op_type for graph in inner for node in graph.node].count("Split") == 1
    assert all(math.prod(tensor.dims) < 600 for graph in (optimised, *inner) for tensor in graph.initializer)
