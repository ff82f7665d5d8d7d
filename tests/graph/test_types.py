"""Shapes and element types through Loop, Scan, If and sequences."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import Types, infer_types, same_dim, with_axis
from tests.graph.reading import dims, nodes, parsed, values

COUNT = "<int64 trips = {4}>"


def inferred(text: str) -> tuple[Types, dict[str, ir.Value], ir.Model]:
    model = parsed(text)
    return infer_types(model), values(model), model


def test_carry_takes_shape_of_its_initial_value() -> None:
    _, found, _ = inferred(f"""(float[2, N] x) => (float[a, b] y) {COUNT} {{
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {{
            d = Identity (c)
            g = Sin (h)
        }}>
    }}""")
    assert dims(found["h"]) == dims(found["g"]) == dims(found["y"]) == [2, "N"]


def test_growing_carry_gives_up_only_the_dimension_that_grows() -> None:
    types, found, model = inferred(f"""(float[2, 3] x, float[1, 3] w) => (float[a, b] y) {COUNT} {{
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {{
            d = Identity (c)
            g = Concat <axis = 0> (h, w)
        }}>
    }}""")
    rows, columns = dims(found["h"]) or [0, 0]
    assert isinstance(rows, str)
    assert columns == 3
    assert not types.is_uniform(found["h"], nodes(model, "Loop")[0].attributes["body"].as_graph())
    outside = dims(found["y"]) or []
    assert outside[1] == 3
    assert outside[0] not in {2, rows}


def test_carry_that_changes_rank_has_no_shape() -> None:
    _, found, _ = inferred(f"""(float x, float[3] w) => (float[a] y) {COUNT} {{
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {{
            d = Identity (c)
            s = Sin (h)
            g = Add (s, w)
        }}>
    }}""")
    assert dims(found["h"]) is None
    assert dims(found["s"]) is None, "what the first pass inferred is no declaration"


def test_carry_that_broadcasts_once_keeps_no_false_one() -> None:
    types, found, model = inferred(f"""(float[1, 3] x, float[2, 3] w) => (float[a, b] y) {COUNT} {{
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {{
            d = Identity (c)
            g = Add (h, w)
        }}>
    }}""")
    assert (dims(found["h"]) or [])[0] not in {1, 2}
    assert not types.is_uniform(found["h"], nodes(model, "Loop")[0].attributes["body"].as_graph())


def test_declared_shape_of_intermediate_value_is_not_trusted() -> None:
    """Exporters write the shape of one example on intermediate values."""
    _, found, _ = inferred("""(float[N, 3] x) => (float[N, 3] y) <float[2, 3] s> {
        s = Sin (x)
        y = Sin (s)
    }""")
    assert dims(found["s"]) == ["N", 3]


def test_body_sees_types_of_captured_values() -> None:
    _, found, _ = inferred(f"""(float16[3] x, float16[2, 3] w) => (float16[a, b] y) {COUNT} {{
        v = Sin (w)
        y, z = Loop (trips, , x) <body = b (int64 i, bool c, float16[] h) => (bool d, float16[] g, float16[] r) {{
            d = Identity (c)
            g = Sin (h)
            r = Mul (v, h)
        }}>
    }}""")
    assert found["r"].dtype == ir.DataType.FLOAT16
    assert dims(found["r"]) == [2, 3]
    assert dims(found["z"]) == [4, 2, 3]


def test_two_symbols_broadcast_to_a_new_one() -> None:
    """Either of the two dimensions may be 1 at run time."""
    _, found, _ = inferred("""(float[A, 3] x, float[B, 3] w) => (float[c, d] y) {
        y = Add (x, w)
    }""")
    first, second = dims(found["y"]) or [None, None]
    assert first not in {"A", "B", None}
    assert second == 3


def test_symbol_and_number_broadcast_to_the_number() -> None:
    _, found, _ = inferred("""(float[A, 1] x, float[4, B] w) => (float[c, d] y) {
        y = Add (x, w)
    }""")
    assert dims(found["y"]) == [4, "B"]


@pytest.mark.parametrize(("axis", "shape"), [(0, [5, 2, 3]), (1, [2, 5, 3]), (-1, [2, 3, 5]), (-3, [5, 2, 3])])
def test_scan_output_gets_the_trip_count_at_its_axis(axis: int, shape: list[int]) -> None:
    _, found, _ = inferred(f"""(float[2, 5, 3] xs) => (float[a, b, c] ys) {{
        ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [{axis}],
            body = b (float[] x) => (float[] y) {{ y = Sin (x) }}> (xs)
    }}""")
    assert dims(found["x"]) == [2, 3]
    assert dims(found["ys"]) == shape


def test_scan_over_symbolic_length_keeps_the_symbol() -> None:
    types, found, model = inferred("""(float[T, 3] xs) => (float[a, b] ys) {
        ys = Scan <num_scan_inputs = 1, body = b (float[] x) => (float[] y) { y = Sin (x) }> (xs)
    }""")
    assert dims(found["ys"]) == ["T", 3]
    body = nodes(model, "Scan")[0].attributes["body"].as_graph()
    assert same_dim(types.trip_dims[body], ir.SymbolicDim("T"))


def test_loop_limited_by_a_shape_stacks_to_that_symbol() -> None:
    _, found, _ = inferred("""(float[T, 3] xs) => (float[a, b] ys) <bool true = {1}> {
        shape = Shape <start = 0, end = 1> (xs)
        trips = Squeeze (shape)
        ys = Loop (trips, true) <body = b (int64 i, bool c) => (bool d, float[] y) {
            d = Identity (c)
            y = Gather (xs, i)
        }>
    }""")
    assert dims(found["ys"]) == ["T", 3]


def test_loop_that_may_stop_early_stacks_to_an_unknown_length() -> None:
    _, found, _ = inferred("""(float[T, 3] xs, int64 last) => (float[a, b] ys) <bool true = {1}> {
        shape = Shape <start = 0, end = 1> (xs)
        trips = Squeeze (shape)
        ys = Loop (trips, true) <body = b (int64 i, bool c) => (bool d, float[] y) {
            d = Less (i, last)
            y = Gather (xs, i)
        }>
    }""")
    assert (dims(found["ys"]) or [None])[0] not in {"T", None}


def test_value_shaped_by_the_iteration_number_is_not_uniform() -> None:
    types, found, model = (
        inferred("""(float[3] x, float[N] v) => (float[3] y) <int64[1] zero = {0}, int64 trips = {4}> {
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {
            d = Identity (c)
            end = Unsqueeze (i, zero)
            head = Slice (v, zero, end, zero)
            s = Sin (head)
            whole = Sin (v)
            total = ReduceSum <keepdims = 0> (s)
            g = Mul (h, total)
        }>
    }""")
    )
    body = nodes(model, "Loop")[0].attributes["body"].as_graph()
    assert not types.is_uniform(found["head"], body)
    assert not types.is_uniform(found["s"], body)
    assert types.is_uniform(found["whole"], body), "a symbol of the outer scope is one number for all iterations"
    assert types.is_uniform(found["g"], body)


def test_inner_shape_that_varies_with_the_outer_loop_is_uniform_in_the_inner_one() -> None:
    types, found, model = inferred("""(float[8] x, int64 n) => (float y)
        <int64 trips = {3}, int64[1] zero = {0}, float start = {0}> {
        y = Loop (trips, , start) <body = outer (int64 i, bool c, float[] h) => (bool d, float[] g) {
            d = Identity (c)
            end = Unsqueeze (i, zero)
            head = Slice (x, zero, end, zero)
            k = Loop (n, , head) <body = inner (int64 j, bool p, float[] f) => (bool q, float[] e) {
                q = Identity (p)
                e = Sin (f)
            }>
            total = ReduceSum <keepdims = 0> (k)
            g = Add (h, total)
        }>
    }""")
    outer, inner = (node.attributes["body"].as_graph() for node in nodes(model, "Loop"))
    assert not types.is_uniform(found["head"], outer)
    assert not types.is_uniform(found["k"], outer)
    assert types.is_uniform(found["e"], inner)


BRANCHES = """(float[2, N] x, float[{other}] w, bool p) => (float[] y) {{
    y = If (p) <
        then_branch = l () => (float[] a) {{ a = Sin (x) }},
        else_branch = r () => (float[] b) {{ b = Sin (w) }}>
}}"""


def test_branches_of_one_shape_give_it() -> None:
    _, found, _ = inferred(BRANCHES.format(other="2, N"))
    assert dims(found["y"]) == [2, "N"]


def test_branches_of_different_dimensions_give_an_unknown_one() -> None:
    _, found, _ = inferred(BRANCHES.format(other="2, 5"))
    first, second = dims(found["y"]) or [None, None]
    assert first == 2
    assert second not in {"N", 5}


def test_branches_of_different_ranks_give_no_shape() -> None:
    _, found, _ = inferred(BRANCHES.format(other="5"))
    assert dims(found["y"]) is None


def test_branch_inside_a_body_varies() -> None:
    types, found, model = (
        inferred("""(float[3] x, float[5] w) => (float y) <int64 trips = {4}, float zero = {0}, int64 one = {1}> {
        y = Loop (trips, , zero) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g) {
            d = Identity (c)
            p = Equal (i, one)
            m = If (p) <
                then_branch = l () => (float[] a) { a = Sin (x) }, else_branch = r () => (float[] e) { e = Sin (w) }>
            total = ReduceSum <keepdims = 0> (m)
            g = Add (h, total)
        }>
    }""")
    )
    body = nodes(model, "Loop")[0].attributes["body"].as_graph()
    assert not types.is_uniform(found["m"], body)
    assert types.is_uniform(found["total"], body)


def test_predicate_that_shapes_fix_is_known_and_chooses_the_shape() -> None:
    types, found, _ = inferred("""(float[2, N] x, float[7] w) => (float[] y) <int64 two = {2}> {
        shape = Shape (x)
        rank = Size (shape)
        p = Equal (rank, two)
        y = If (p) <then_branch = l () => (float[] a) { a = Sin (x) },
            else_branch = r () => (float[] b) { b = Sin (w) }>
    }""")
    assert bool(types.constants[found["p"]])
    assert dims(found["y"]) == [2, "N"]


def test_predicate_on_a_symbolic_dimension_is_not_known() -> None:
    types, found, _ = inferred("""(float[2, N] x) => (bool p) <int64 two = {2}, int64 one = {1}> {
        shape = Shape (x)
        n = Gather (shape, one)
        p = Equal (n, two)
    }""")
    assert found["p"] not in types.constants


def test_shape_arithmetic_of_exporters_becomes_a_shape() -> None:
    types, found, _ = (
        inferred("""(float[2, 6] x) => (float[a, b, c] y) <int64 one = {1}, int64[1] two = {2}, int64[1] zero = {0}> {
        shape = Shape (x)
        n = Gather (shape, one)
        row = Unsqueeze (n, zero)
        half = Div (row, two)
        target = Concat <axis = 0> (two, two, half)
        y = Reshape (x, target)
    }""")
    )
    assert np.array_equal(types.constants[found["target"]], [2, 2, 3])
    assert dims(found["y"]) == [2, 2, 3]


def test_target_of_known_length_gives_the_rank() -> None:
    _, found, _ = inferred("""(float[N] x, int64[3] target) => (float[a, b, c] y, float[d, e, f] z) {
        y = Reshape (x, target)
        z = Expand (x, target)
    }""")
    assert len(dims(found["y"]) or []) == 3
    assert len(dims(found["z"]) or []) == 3


def test_expand_of_a_tensor_of_unknown_rank_has_an_unknown_rank() -> None:
    _, found, _ = inferred("""(float[N] x, int64[r] shape) => (float[a] y) <int64[2] target = {3, 1}> {
        any = Reshape (x, shape)
        z = Expand (any, target)
        y = Reshape (z, shape)
    }""")
    assert found["z"].shape is None


def test_condition_of_shape_one_keeps_it() -> None:
    _, found, _ = inferred(f"""(float[3] x, bool[1] start) => (float[3] y) {COUNT} {{
        y = Loop (trips, start, x) <body = b (int64 i, bool[1] c, float[3] h) => (bool[1] d, float[3] g) {{
            d = Identity (c)
            g = Sin (h)
        }}>
    }}""")
    assert dims(found["c"]) == [1]
    assert dims(found["i"]) == []


def test_sequence_read_knows_the_rank_of_its_elements() -> None:
    _, found, _ = inferred(f"""(float[3] x, float[3] w) => (float[3] y) {COUNT} {{
        parts = SequenceConstruct (x, w)
        y = Loop (trips, , x) <body = b (int64 i, bool c, float[3] h) => (bool d, float[] g) {{
            d = Identity (c)
            part = SequenceAt (parts, i)
            g = Mul (h, part)
        }}>
    }}""")
    assert found["part"].dtype == ir.DataType.FLOAT
    assert dims(found["part"]) == [3]


def test_empty_sequence_learns_from_what_the_body_inserts() -> None:
    _, found, _ = inferred(f"""(float[2, 3] x) => (float[a, b] y) {COUNT} {{
        none = SequenceEmpty ()
        all = Loop (trips, , none) <body = b (int64 i, bool c, seq(float[]) q) => (bool d, seq(float[]) r) {{
            d = Identity (c)
            s = Sin (x)
            r = SequenceInsert (q, s)
        }}>
        y = ConcatFromSequence <axis = 0> (all)
    }}""")
    shape = dims(found["y"]) or []
    assert len(shape) == 2
    assert shape[1] == 3


def test_integer_and_boolean_carries_keep_their_type() -> None:
    _, found, _ = inferred(f"""(float[3] x, int64 n, bool p) => (float[3] y) {COUNT} {{
        y, m, q = Loop (trips, , x, n, p) <body = b (int64 i, bool c, float[3] h, int64 k, bool o)
            => (bool d, float[3] g, int64 l, bool u) {{
            d = Identity (c)
            g = Sin (h)
            l = Add (k, i)
            u = Not (o)
        }}>
    }}""")
    assert (found["m"].dtype, found["q"].dtype) == (ir.DataType.INT64, ir.DataType.BOOL)


def test_second_inference_changes_nothing() -> None:
    model = parsed(f"""(float[N, 3] x, float[1, 3] w) => (float[a, b] y) {COUNT} {{
        y, rows = Loop (trips, , x) <body = b (int64 i, bool c, float[] h) => (bool d, float[] g, float[] r) {{
            d = Identity (c)
            g = Concat <axis = 0> (h, w)
            r = Sin (w)
        }}>
    }}""")
    infer_types(model)
    first = {name: len(dims(v) or []) for name, v in values(model).items()}
    infer_types(model)
    assert {name: len(dims(v) or []) for name, v in values(model).items()} == first


@pytest.mark.parametrize(
    ("axis", "expected"), [(0, [9, 2, 3]), (1, [2, 9, 3]), (2, [2, 3, 9]), (-1, [2, 3, 9]), (-3, [9, 2, 3])]
)
def test_with_axis_counts_in_the_result(axis: int, expected: list[int]) -> None:
    assert list(with_axis(ir.Shape([2, 3]), axis, 9)) == expected


def test_unnamed_dimensions_are_never_the_same() -> None:
    assert not same_dim(ir.SymbolicDim(None), ir.SymbolicDim(None))
    assert same_dim(ir.SymbolicDim("N"), ir.SymbolicDim("N"))
    assert not same_dim(ir.SymbolicDim("N"), 3)


def test_size_of_a_growing_carry_is_not_that_of_its_first_iteration() -> None:
    text = """(float[3] x, float[1] w) => (float[n] y) <int64 five = {5}> {
        y = Loop ( , , x) <body = body (int64 i, bool go, float[k] h) => (bool again, float[m] next) {
            next = Concat <axis = 0> (h, w)
            size = Size (next)
            again = Less (size, five)
        }>
    }"""
    model = parsed(text)
    types = infer_types(model)
    assert not {"again", "size"} & {value.name for value in types.constants}
    assert values(model)["size"].const_value is None


def test_long_vectors_are_not_followed_element_by_element() -> None:
    """A few hostile nodes may ask for any number of elements."""
    doubled = " ".join(f"v{k + 1} = Concat <axis = 0> (v{k}, v{k})" for k in range(60))
    _, found, _ = inferred(f"(float[2] v0, float[N] n) => (float[K] y) {{ {doubled} y = Concat <axis = 0> (v60, n) }}")
    assert dims(found["v60"]) == [2**61]
    assert len(dims(found["y"]) or []) == 1
    for operator in ("Reshape", "Expand"):
        _, found, _ = inferred(f"(float[N] x, int64[1000000000000] s) => (float[K] y) {{ y = {operator} (x, s) }}")
        assert len(dims(found["y"]) or []) == 1  # as declared


def test_shape_of_a_long_vector_that_is_reshaped_is_known() -> None:
    _, found, _ = inferred("(float[100000] x) => (float[K,L] y) <int64[2] s = {100, -1}> { y = Reshape (x, s) }")
    assert dims(found["y"]) == [100, 1000]
