"""What a loop tapes: as little as the reverse pass reads, and nothing that is there anyway."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from tests.adjoint.agreement import all_makers, run
from tests.corpus import Example


def differentiated(example: Example, *, wrt: tuple[str, ...] | None = None) -> ir.Model:
    return cfad.vjp(example.model, wrt=list(wrt or example.wrt), outputs=example.outputs).model


def forward_loop(model: ir.Model) -> ir.Node:
    """The first Loop or Scan of the main graph: the primal one, extended."""
    return next(node for node in model.graph if node.op_type in {"Loop", "Scan"})


def taped(name: str, *, wrt: tuple[str, ...] | None = None) -> dict[str, ir.Value]:
    """What the forward loop of a corpus model gives out beyond the primal outputs, by the name of the primal value."""
    example = all_makers()[name]()
    node = forward_loop(differentiated(example, wrt=wrt))
    primal = next(n for n in example.model.graph.node if n.op_type in {"Loop", "Scan"})
    new = [value for value in node.outputs if value.name not in set(primal.output)]
    return {(value.name or "").removeprefix("tape.").removesuffix(".final"): value for value in new}


def operators_in_reverse(name: str) -> list[str]:
    """The operators of the last control-flow node of the main graph, the reverse loop, at every depth."""
    model = differentiated(all_makers()[name]())
    node = [n for n in model.graph if n.op_type in {"Loop", "Scan", "If"}][-1]
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return [inner.op_type for graph in graphs for inner in graph.all_nodes()]


def test_linear_body_tapes_nothing() -> None:
    assert taped("loop_linear") == {}


def test_reduction_needs_the_shape_of_its_operand_only() -> None:
    found = taped("loop_shape_only")
    assert all(value.dtype == ir.DataType.INT64 for value in found.values())


def test_cheap_products_are_replayed_from_the_carry() -> None:
    assert set(taped("loop_replays_products")) == {"h"}


def test_iteration_number_is_not_taped() -> None:
    found = taped("loop_index_in_arithmetic")
    assert "i" not in found
    assert all(value.dtype == ir.DataType.DOUBLE for value in found.values())


def test_value_computed_from_the_iteration_number_is_not_taped() -> None:
    assert set(taped("loop_index_in_arithmetic")).isdisjoint({"n", "t", "wt"})


def test_slice_read_by_the_iteration_number_is_not_taped() -> None:
    assert "row" not in taped("loop_index_gathers_rows")


def test_captured_values_are_not_taped() -> None:
    for name in ("loop_captured_weight", "loop_static", "loop_captured_weight_computed", "loop_captured_at_depth_two"):
        assert set(taped(name)).isdisjoint({"w", "b", "v", "u"})


def test_initializers_of_the_body_are_not_taped() -> None:
    assert "w" not in taped("loop_initializer_in_body")
    assert set(taped("loop_constant_in_body")).isdisjoint({"w", "t"})


def test_slices_of_scan_inputs_are_not_taped() -> None:
    for name in ("scan_one_state", "scan_axes", "scan_directions", "scan_axes_and_directions"):
        assert set(taped(name)).isdisjoint({"x", "u", "v"})


def test_condition_is_not_taped() -> None:
    assert set(taped("loop_condition_read_in_body")).isdisjoint({"going", "one"})


def test_exit_of_a_carry_is_read_from_the_entry_of_the_next_iteration() -> None:
    """Tanh reads its result, which is the next carry: the entry is taped, not both."""
    found = taped("scan_captured_weight")
    assert "next" not in found
    assert "s" in found


def test_only_what_the_wanted_gradients_need_is_taped() -> None:
    """By x alone, the factor sin(h) of the gradient by w is not needed."""
    assert set(taped("loop_static", wrt=("x",))) == {"h"}
    assert set(taped("loop_static")) >= {"h", "s"}


def test_predicate_inside_a_loop_is_recorded_as_one_boolean() -> None:
    found = taped("if_in_loop_predicate_from_carry")
    assert found["p"].dtype == ir.DataType.BOOL


def test_predicate_from_the_iteration_number_is_replayed() -> None:
    assert set(taped("if_in_loop")).isdisjoint({"even", "rest"})


def test_recorded_predicate_is_not_computed_again() -> None:
    assert set(operators_in_reverse("if_in_loop_predicate_from_carry")).isdisjoint({"Greater"})


def test_mask_compared_from_the_carry_is_recorded() -> None:
    """A comparison of numbers that were rounded otherwise could decide otherwise: it is a decision to record."""
    assert "Greater" not in operators_in_reverse("loop_carry_from_comparison")


def test_random_draw_is_taped() -> None:
    assert "noise" in taped("random_draw_in_body")
    assert "RandomNormalLike" not in operators_in_reverse("random_draw_in_body")


def test_random_draw_in_a_branch_is_not_drawn_again() -> None:
    model = differentiated(all_makers()["random_draw_in_if_in_body"]())
    draws = [node for node in model.graph.all_nodes() if node.op_type == "RandomUniformLike"]
    assert len(draws) == 1


@pytest.mark.parametrize("name", ["loop_dynamic_stop", "loop_stop_by_carry", "loop_no_limit", "loop_nothing"])
def test_trip_count_of_a_loop_that_may_stop_early_is_recorded(name: str) -> None:
    counters = [value for value in taped(name).values() if value.dtype == ir.DataType.INT64]
    assert len(counters) == 1


def test_trip_count_that_the_model_fixes_is_not_recorded() -> None:
    for name in ("loop_static", "loop_dynamic_trips"):
        assert all(value.dtype == ir.DataType.DOUBLE for value in taped(name).values())


def test_condition_that_ended_a_loop_is_not_asked_again() -> None:
    for name in ("loop_stop_by_carry", "loop_in_loop_stops_by_value"):
        assert set(operators_in_reverse(name)).isdisjoint({"Less"})


def test_values_of_one_shape_are_stacked_not_kept_in_sequences() -> None:
    for name in ("loop_static", "loop_dynamic_trips", "loop_dynamic_stop", "symbolic_dims_without_broadcasting"):
        assert all(isinstance(value.type, ir.TensorType) for value in taped(name).values())


def test_values_of_varying_shape_are_kept_in_a_sequence() -> None:
    found = taped("growing_carry")
    assert any(isinstance(value.type, ir.SequenceType) for value in found.values())


def test_fixed_trip_count_tapes_through_a_scan() -> None:
    """A stacked Loop output costs twice its bytes; a Scan writes into one buffer."""
    assert forward_loop(differentiated(all_makers()["loop_static"]())).op_type == "Scan"


def test_weight_gradient_is_contracted_after_the_loop() -> None:
    """No matrix product of the weight's shape inside the reverse loop: one product of the stacked factors behind it."""
    model = differentiated(all_makers()["loop_captured_weight"]())
    reverse = [n for n in model.graph if n.op_type in {"Loop", "Scan", "If"}][-1]
    graph = next(a.as_graph() for a in reverse.attributes.values() if a.type == ir.AttributeType.GRAPH)
    inside = [n for n in graph.all_nodes() if n.op_type in {"MatMul", "Gemm"}]
    behind = [n for n in model.graph if n.op_type in {"MatMul", "Gemm"}]
    assert len(inside) == 1, "the cotangent of the carry alone"
    assert len(behind) == 1


def test_gradient_of_stop_in_body_is_cut() -> None:
    """A value of the body that counts as constant: the gradient is that of the remaining paths."""
    text = """<ir_version: 10, opset_import: ["": 21]> stopped (double[2] x, double[2] w) => (double[2] y)
        <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, double[2] h) => (bool again, double[2] next) {
            again = Identity (going)
            s = Sin (h)
            next = Add (s, w)
        }>
    }"""
    model = cfad.vjp(onnx.parser.parse_model(text), wrt=["x", "w"], stop_gradient=["s"]).proto()
    feeds = {"x": np.asarray([0.3, 0.4]), "w": np.asarray([0.5, 0.6]), "y_grad": np.asarray([2.0, -1.0])}
    found = run(model, feeds, "ORT_ENABLE_ALL")
    np.testing.assert_array_equal(found["x_grad"], [0.0, 0.0])
    np.testing.assert_array_equal(found["w_grad"], [2.0, -1.0])


def test_branch_in_a_loop_hands_out_factors_of_weight_gradients() -> None:
    """No matrix is summed in the loop: each is one product of stacked factors behind it."""
    model = differentiated(all_makers()["if_in_loop_weights"]())
    loop = [node for node in model.graph if node.op_type == "Scan"][-1]
    body = loop.attributes["body"].as_graph()
    reversed_if = next(node for node in body if node.op_type == "If")
    assert len(reversed_if.outputs) == 2  # the cotangent of the carry, and the one factor both branches share
    assert len(body.outputs) == 2
    assert [node.op_type for node in model.graph].count("Compress") == 4


def test_stacks_of_matrices_are_contracted_behind_the_loop() -> None:
    model = differentiated(all_makers()["loop_attends_to_captured_memory"]())
    loop = [node for node in model.graph if node.op_type == "Scan"][-1]
    carries = len(loop.inputs) - loop.attributes["num_scan_inputs"].as_int()
    assert carries == 1  # the cotangent of the carry: no sum of a captured stack


def test_factor_that_is_taped_is_not_stacked_again() -> None:
    """The sine is taped by the forward loop, and is the factor of the gradient by the matrix."""
    text = """<ir_version: 10, opset_import: ["": 21]> taped (double[2, 3] x, double[3, 3] w) => (double[2, 3] y)
        <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, double[2, 3] h) => (bool again, double[2, 3] next) {
            again = Identity (going)  s = Sin (h)  p = MatMul (s, w)  next = Mul (p, s)
        }>
    }"""
    model = cfad.vjp(onnx.parser.parse_model(text), wrt=["x", "w"], plan="taped").model
    forward, reverse = [node for node in model.graph if node.op_type == "Scan"]
    tapes = {value.name for value in forward.outputs}
    body = reverse.attributes["body"].as_graph()
    copies = [node for node in body if node.op_type == "Identity" and node.outputs[0] in body.outputs]
    assert "tape.s" in tapes
    assert len(copies) == 0


@pytest.mark.parametrize(("rows", "stacked"), [(4, True), (512, False)])
def test_factors_of_many_rows_are_multiplied_in_the_loop(rows: int, stacked: bool) -> None:
    """A stack of them would be many times the sum, and the product of each iteration is dear enough by itself."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    summed (double[{rows}, 32] x, double[32, 32] w) => (double[{rows}, 32] y) <int64 trips = {{4}}> {{
        y = Loop (trips, , x) <body = body (int64 i, bool going, double[{rows}, 32] h)
            => (bool again, double[{rows}, 32] next) {{
            again = Identity (going)  p = MatMul (h, w)  next = Sin (p)
        }}>
    }}"""
    model = cfad.vjp(onnx.parser.parse_model(text), wrt=["x", "w"], plan="taped").model
    reverse = [node for node in model.graph if node.op_type == "Scan"][-1]
    sums = len(reverse.inputs) - reverse.attributes["num_scan_inputs"].as_int() - 1
    behind = [node for node in model.graph if node.op_type == "Gemm"]
    assert (sums, len(behind)) == ((0, 1) if stacked else (1, 0))
