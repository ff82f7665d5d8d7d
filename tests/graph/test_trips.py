"""How often a loop runs, as far as the model says."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnx_cfad.graph.regions import loop_site
from onnx_cfad.graph.trips import TripCount, constant_of, trip_count
from onnx_cfad.graph.types import infer_types
from tests.graph.reading import nodes, parsed, values

GOES_ON = "d = Identity (c)"
STOPS = "d = Less (i, last)"


def loop_model(heads: str, call: str, condition: str = GOES_ON, constants: str = "int64 five = {5}") -> ir.Model:
    return parsed(f"""(float[3] x{heads}) => (float[3] y) <{constants}, int64 last = {{2}}> {{
        y = {call} <body = b (int64 i, bool c, float[3] h) => (bool d, float[3] g) {{
            {condition}
            g = Sin (h)
        }}>
    }}""")


def count(model: ir.Model) -> TripCount:
    infer_types(model)
    return trip_count(loop_site(nodes(model, "Loop")[0]))


def test_constant_limit_is_static() -> None:
    assert count(loop_model("", "Loop (five, , x)")) == TripCount(static=5, bound=5)


@pytest.mark.parametrize(("constants", "expected"), [("int64 five = {0}", 0), ("int64 five = {-3}", 0)])
def test_limit_below_one_is_zero_trips(constants: str, expected: int) -> None:
    found = count(loop_model("", "Loop (five, , x)", constants=constants))
    assert found.static == expected
    assert not found.positive


def test_limit_of_shape_one_counts() -> None:
    assert count(loop_model("", "Loop (five, , x)", constants="int64[1] five = {5}")).static == 5


def test_true_start_is_as_good_as_none() -> None:
    found = count(loop_model("", "Loop (five, yes, x)", constants="int64 five = {5}, bool yes = {1}"))
    assert found == TripCount(static=5, bound=5)


def test_false_start_is_zero_trips() -> None:
    found = count(loop_model("", "Loop (five, no, x)", constants="int64 five = {5}, bool no = {0}"))
    assert (found.static, found.conditional) == (0, True)


def test_start_from_an_input_only_bounds() -> None:
    assert count(loop_model(", bool p", "Loop (five, p, x)")) == TripCount(bound=5, conditional=True)


def test_limit_from_an_input_is_dynamic() -> None:
    found = count(loop_model(", int64 n", "Loop (n, , x)"))
    assert found == TripCount()
    assert str(found) == "dynamic"


def test_condition_of_the_body_only_bounds() -> None:
    found = count(loop_model("", "Loop (five, , x)", STOPS))
    assert found == TripCount(bound=5, conditional=True)
    assert str(found) == "at most 5"


def test_condition_that_is_constantly_true_does_not_end_the_loop() -> None:
    found = count(loop_model("", "Loop (five, , x)", "d = Constant <value = bool {1}> ()"))
    assert found.static == 5


def test_condition_that_is_constantly_false_ends_the_loop() -> None:
    found = count(loop_model("", "Loop (five, , x)", "d = Constant <value = bool {0}> ()"))
    assert found.static in {None, 1}
    assert found.conditional or found.static == 1


def test_condition_through_identities_goes_on() -> None:
    assert count(loop_model("", "Loop (five, , x)", "e = Identity (c)\n d = Identity (e)")).static == 5


def test_loop_without_limit_is_dynamic() -> None:
    found = count(loop_model("", "Loop (, , x)", STOPS, constants="bool yes = {1}"))
    assert (found.static, found.bound, found.conditional) == (None, None, True)


def test_largest_limit_is_no_bound() -> None:
    found = count(loop_model("", "Loop (five, , x)", STOPS, constants="int64 five = {9223372036854775807}"))
    assert (found.static, found.bound) == (None, None)


def test_limit_is_seen_through_identity_and_cast() -> None:
    model = parsed("""(float[3] x) => (float[3] y) <int32 n = {6}> {
        m = Cast <to = 7> (n)
        k = Identity (m)
        y = Loop (k, , x) <body = b (int64 i, bool c, float[3] h)
            => (bool d, float[3] g) { d = Identity (c)  g = Sin (h) }>
    }""")
    assert count(model).static == 6


def test_input_with_a_default_is_no_constant() -> None:
    """A graph input that an initializer gives a default may be fed something else."""
    model = loop_model(", int64 five", "Loop (five, , x)", constants="int64 six = {6}")
    model.graph.inputs[1].const_value = ir.tensor(5, name="five")
    model.graph.initializers.add(model.graph.inputs[1])
    assert count(model).static is None
    assert constant_of(model.graph.inputs[1]) is None


def test_limit_from_a_known_shape_is_static() -> None:
    model = parsed("""(float[3] x, float[7, 3] rows) => (float[3] y) {
        shape = Shape <start = 0, end = 1> (rows)
        n = Squeeze (shape)
        y = Loop (n, , x) <body = b (int64 i, bool c, float[3] h)
            => (bool d, float[3] g) { d = Identity (c)  g = Sin (h) }>
    }""")
    types = infer_types(model)
    assert int(types.constants[values(model)["n"]].reshape(-1)[0]) == 7


@pytest.mark.parametrize(("axis", "expected"), [(0, 4), (1, 5), (-1, 5), (-2, 4)])
def test_scan_runs_as_often_as_its_axis_is_long(axis: int, expected: int) -> None:
    model = parsed(f"""(float[4, 5] xs) => (float[a, b] ys) {{
        ys = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}],
            body = b (float[] x) => (float[] y) {{ y = Sin (x) }}> (xs)
    }}""")
    found = trip_count(loop_site(nodes(model, "Scan")[0]))
    assert found == TripCount(static=expected, bound=expected)
    assert found.positive


def test_scan_takes_the_first_known_length() -> None:
    model = parsed("""(float[T, 3] us, float[4, 3] vs) => (float[a, b] ys) {
        ys = Scan <num_scan_inputs = 2, body = b (float[3] u, float[3] v) => (float[3] y) { y = Mul (u, v) }> (us, vs)
    }""")
    assert trip_count(loop_site(nodes(model, "Scan")[0])).static == 4


def test_scan_of_symbolic_length_is_dynamic() -> None:
    model = parsed("""(float[T, 3] xs) => (float[a, b] ys) {
        ys = Scan <num_scan_inputs = 1, body = b (float[3] x) => (float[3] y) { y = Sin (x) }> (xs)
    }""")
    assert trip_count(loop_site(nodes(model, "Scan")[0])) == TripCount()
