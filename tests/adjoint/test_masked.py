"""Masked branches: exact zeros from the side that was not taken, whatever it computes; refusals say why."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import load
from onnx_cfad.rewriters.predicate_branch import PredicateBranchPass
from tests.adjoint.agreement import run
from tests.adjoint.poison import POISONS, SEED, WRONG, W, feeds_of, first_and_second, model_of
from tests.oracle import assert_vjp, run_ort


@pytest.mark.parametrize("adjoint", ["routed", "masked"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("poison", POISONS)
def test_the_side_not_taken_contributes_exactly_zero(poison: str, wrong: str, adjoint: str) -> None:
    first, second = first_and_second(model_of(POISONS[poison]), adjoint, feeds_of(WRONG[wrong]))
    t, d = np.tanh(W), 1 - np.tanh(W) ** 2
    np.testing.assert_array_equal(first["x_first"].view(np.int64), 0)
    np.testing.assert_array_equal(first["u_first"].view(np.int64), 0)
    np.testing.assert_allclose(first["y"], t * W, rtol=1e-14)
    np.testing.assert_allclose(first["w_first"], SEED * (d * W + t), rtol=1e-13)
    np.testing.assert_array_equal(second["x_grad"].view(np.int64), 0)
    np.testing.assert_array_equal(second["u_grad"].view(np.int64), 0)
    np.testing.assert_allclose(second["y_seed_grad"], 0.7 * (d * W + t), rtol=1e-13)
    np.testing.assert_allclose(second["w_grad"], 0.7 * SEED * (2 * d - 2 * t * d * W), rtol=1e-12)


@pytest.mark.parametrize("written", ["as an If", "as a mask"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("poison", POISONS)
def test_tangents_do_not_come_from_the_side_not_taken(poison: str, wrong: str, written: str) -> None:
    """Forward mode: the tangent of tanh(w) w, whatever the tangents of x and u are."""
    model = load(model_of(POISONS[poison]))
    if written == "as a mask":
        infer_types(model)
        PredicateBranchPass(node for node in model.graph.all_nodes() if node.op_type == "If")(model)
    emitted = cfad.jvp(model, wrt=["x", "w", "u"]).proto()
    onnx.checker.check_model(emitted, full_check=True)
    tangents = {"x_tangent": np.ones(3), "w_tangent": SEED, "u_tangent": np.ones((3, 3))}
    found = run(emitted, {**feeds_of(WRONG[wrong]), **tangents}, "ORT_ENABLE_ALL")
    t, d = np.tanh(W), 1 - np.tanh(W) ** 2
    np.testing.assert_allclose(found["y_tangent"], SEED * (d * W + t), rtol=1e-13)
    still = run(emitted, {**feeds_of(WRONG[wrong]), **tangents, "w_tangent": np.zeros(3)}, "ORT_ENABLE_ALL")
    np.testing.assert_array_equal(still["y_tangent"], 0)


@pytest.mark.parametrize("adjoint", ["routed", "masked"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("poison", POISONS)
def test_hessian_products_do_not_come_from_the_side_not_taken(poison: str, wrong: str, adjoint: str) -> None:
    """Forward over reverse, of the sum of tanh(w) w."""
    model = model_of(POISONS[poison])
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, []))
    site = next(iter(cfad.plan(model)))
    emitted = cfad.hvp(model, loss="loss", wrt=["x", "w"], sites=[f"{site}={adjoint}"]).proto()
    tangents = {"x_tangent": np.ones(3), "w_tangent": SEED}
    found = run(emitted, {**feeds_of(WRONG[wrong]), **tangents}, "ORT_ENABLE_ALL")
    t, d = np.tanh(W), 1 - np.tanh(W) ** 2
    products = {name: value for name, value in found.items() if name.endswith("_tangent")}
    np.testing.assert_array_equal(products["x_grad_tangent"].view(np.int64), 0)
    np.testing.assert_allclose(products["w_grad_tangent"], SEED * (2 * d - 2 * t * d * W), rtol=1e-12)


@pytest.mark.parametrize("adjoint", ["routed", "masked"])
@pytest.mark.parametrize("pole", ["z = Log (x)", "s = Sqrt (x)  z = Reciprocal (s)", "z = Div (w, x)", "z = Exp (x)"])
def test_what_only_a_branch_that_is_not_taken_reads_is_cut_at_its_poles(pole: str, adjoint: str) -> None:
    """The pole is outside the If, in front of it."""
    model = model_of("a = Mul (z, w)", before=pole)
    first, second = first_and_second(model, adjoint, feeds_of(np.asarray([0.0, 0.0, 1e4])))
    np.testing.assert_array_equal(first["x_first"], 0)
    np.testing.assert_array_equal(second["x_grad"], 0)
    assert np.isfinite(second["w_grad"]).all()


@pytest.mark.parametrize("poison", [p for p in POISONS if "out of range" not in p and "integer" not in p])
def test_the_side_that_is_taken_keeps_its_gradient(poison: str) -> None:
    model, feeds = model_of(POISONS[poison]), feeds_of(np.asarray([0.4, 0.6, 0.9]), taken=True)
    site = next(iter(cfad.plan(model)))
    found = [
        run(cfad.vjp(model, wrt=["x", "w", "u"], sites=[f"{site}={how}"]).proto(), {**feeds, "y_grad": SEED},
            "ORT_ENABLE_ALL")
        for how in ("routed", "masked")
    ]  # fmt: skip
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)
    assert_vjp(model, feeds, wrt=["x", "w", "u"])


REFUSED = {
    "return [2] and [3]": "then_branch = l () => (double[2] a) { a = Gather (x, two) },"
    " else_branch = r () => (double[3] b) { b = Tanh (x) }",
    "draws random numbers": "then_branch = l () => (double[3] a) { r = RandomUniformLike (x)  a = Mul (x, r) },"
    " else_branch = r () => (double[3] b) { b = Tanh (x) }",
    "works on a sequence": "then_branch = l () => (double[3] a) { s = SequenceConstruct (x, x)"
    "  a = SequenceAt (s, one) }, else_branch = r () => (double[3] b) { b = Tanh (x) }",
    "has no bound": """then_branch = l () => (double[3] a) { a = Loop (, , x) <
        body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next) {
            next = Mul (h, h)  n = ReduceMax <keepdims = 0> (next)  k = Constant <value = double {0.1}> ()
            again = Greater (n, k)
        }> }, else_branch = r () => (double[3] b) { b = Tanh (x) }""",
    "depends on data": "then_branch = l () => (double[3] a) { n = NonZero (x)  t = Shape (n)  f = Cast <to = 11> (t)"
    "  c = ReduceMax <keepdims = 0> (f)  a = Mul (x, c) }, else_branch = r () => (double[3] b) { b = Tanh (x) }",
    "takes a size from data": "then_branch = l () => (double[3] a) { n = Cast <to = 7> (x)"
    "  m = ReduceSum <keepdims = 0> (n)  c = Range (zero, m, one)  s = ReduceSum <keepdims = 0> (c)"
    "  f = Cast <to = 11> (s)  a = Mul (x, f) }, else_branch = r () => (double[3] b) { b = Tanh (x) }",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_say_why(reason: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> refused (double[3] x, bool p) => (double[N] y)
        <int64[2] two = {{0, 1}}, int64 one = {{1}}, int64 zero = {{0}}> {{ y = If (p) <{REFUSED[reason]}> }}"""
    )
    with pytest.raises(PlanError, match="cannot be masked") as caught:
        cfad.vjp(model, wrt=["x"], sites=["main/if_0=masked"])
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        ("e = Gather <axis = 1> (rows, k)  a = ReduceSum <keepdims = 0> (e)", "Gather may find an axis too short"),
        ("e = Gather (rows, five)  a = ReduceSum <keepdims = 0> (e)", "Gather may find an axis too short"),
        ("e = ArgMax <axis = 1> (rows)  f = Cast <to = 11> (e)  a = ReduceMax <keepdims = 0> (f)", "ArgMax may find"),
        (
            """a = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                body = step (double h, double[3] u) => (double next)
                    { t = ReduceMax <keepdims = 0> (u)  next = Mul (h, t) }> (total, rows)""",
            "Scan may have nothing to read",
        ),
    ],
    ids=["symbolic", "short", "argmax", "scan"],
)
def test_a_branch_that_needs_elements_is_not_run_unasked(branch: str, reason: str) -> None:
    """The predicate says whether there are any, which no shape shows. It is routed, whatever the target."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    columns (double[3, N] rows, int64 n) => (double y) <int64 zero = {{0}}, int64 five = {{5}}, int64 k = {{0}}> {{
        p = Greater (n, zero)
        total = ReduceSum <keepdims = 0> (rows)
        y = If (p) <
            then_branch = l () => (double a) {{ {branch} }},
            else_branch = r () => (double b) {{ b = Sin (total) }}>
    }}""")
    with pytest.raises(PlanError, match=reason):
        cfad.vjp(model, sites=["main/if_0=masked"])
    emitted = cfad.vjp(model, target="cuda").proto()
    found = run_ort(emitted, {"rows": np.zeros((3, 0)), "n": np.asarray(0), "y_grad": np.ones(())})
    assert found["y"] == 0.0
    assert found["rows_grad"].shape == (3, 0)


@pytest.mark.parametrize("trips", [0, 3])
@pytest.mark.parametrize("target", ["ort", "cuda"])
def test_the_guard_of_a_reverse_loop_is_not_masked_in_the_second_derivative(target: str, trips: int) -> None:
    """A gradient model has an If around a Scan, which refuses to run zero times, and asks no shape whether it may."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    empty (double[0] x, int64 n) => (double y) <int64[1] first = {0}, int64[1] last = {-1}> {
        f = Loop (n, , x) <body = step (int64 i, bool go, double[] h) => (bool on, double[] next)
            { on = Identity (go)  t = Tanh (h)  next = Slice (t, first, last, first) }>
        q = Mul (f, f)
        y = ReduceSum <keepdims = 0> (q)
    }""")
    gradient = cfad.vjp(model).proto()
    second = cfad.vjp(gradient, wrt=["x", "y_grad"], outputs=["x_grad"], target=target).proto()
    nothing = np.zeros(0)
    found = run_ort(second, {"x": nothing, "n": np.asarray(trips), "y_grad": np.ones(()), "x_grad_grad": nothing})
    assert found["x_grad"].shape == (0,)
    assert found["y_grad_grad"] == 0.0


def test_a_predicate_that_asks_for_a_shape_is_refused() -> None:
    """The other branch would not fit: here it multiplies four elements by three."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    by_length (double[N] x, double[3] w) => (double[N] y) <int64 three = {3}> {
        n = Size (x)
        p = Equal (n, three)
        y = If (p) <
            then_branch = l () => (double[N] a) { a = Mul (x, w) },
            else_branch = r () => (double[N] b) { b = Tanh (x) }>
    }""")
    with pytest.raises(PlanError, match="asks for a shape"):
        cfad.vjp(model, wrt=["x"], sites=["main/if_0=masked"])


@pytest.mark.parametrize("element", ["bool", "int64", "int32", "uint8", "int8", "uint16"])
def test_results_that_carry_no_derivative_are_selected_too(element: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    kinds (float[3] x, {element}[3] n, {element}[3] m, bool[1] p) => (float[3] y, {element}[3] k, float s) {{
        y, k, s = If (p) <
            then_branch = l () => (float[3] a, {element}[3] c, float e)
                {{ a = Sin (x)  c = Identity (n)  e = ReduceSum <keepdims = 0> (a) }},
            else_branch = r () => (float[3] b, {element}[3] d, float f)
                {{ b = Tanh (x)  d = Identity (m)  f = ReduceMax <keepdims = 0> (b) }}>
    }}""")
    kind = np.dtype(element)
    x = np.asarray([0.3, -0.7, 1.1], np.float32)
    n, m = np.asarray([1, 0, 1], kind), np.asarray([0, 0, 1], kind)
    emitted = cfad.vjp(model, wrt=["x"], outputs=["y", "s"], sites=["main/if_0=masked"]).proto()
    onnx.checker.check_model(emitted, full_check=True)
    assert "If" not in [node.op_type for node in emitted.graph.node]
    for taken in (True, False):
        feeds = {"x": x, "n": n, "m": m, "p": np.asarray([taken])}
        seeds = {"y_grad": np.ones(3, np.float32), "s_grad": np.asarray(0, np.float32)}
        found = run(emitted, {**feeds, **seeds}, "ORT_ENABLE_ALL")
        np.testing.assert_array_equal(found["k"], n if taken else m)
        np.testing.assert_allclose(found["x_grad"], np.cos(x) if taken else 1 - np.tanh(x) ** 2, rtol=1e-6)
        assert found["s"].shape == ()


@pytest.mark.parametrize("target", ["ort", "cuda"])
def test_a_pole_in_front_of_a_branch_that_only_hands_it_on_is_cut(target: str) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    pole (double[2] z, double[2] w, bool p) => (double[2] y) {
        x = Log (z)
        y = If (p) <then_branch = t () => (double[2] a) { a = Identity (x) },
                    else_branch = e () => (double[2] b) { b = Identity (w) }>
    }""")
    gradient = cfad.vjp(model, wrt=["z"], target=target).proto()
    assert "If" not in {node.op_type for node in gradient.graph.node}
    feeds = {"z": np.asarray([0.0, 0.5]), "w": np.ones(2), "y_grad": np.ones(2)}
    np.testing.assert_array_equal(run_ort(gradient, {**feeds, "p": np.asarray(False)})["z_grad"], [0, 0])
    np.testing.assert_array_equal(run_ort(gradient, {**feeds, "p": np.asarray(True)})["z_grad"], [np.inf, 2])


def test_a_pole_in_a_masked_branch_in_front_of_another_is_cut() -> None:
    """What the second If guards is what the first one's selection gives, once that is masked too."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    pole (double[2] z, double[2] w, bool p) => (double[2] y) {
        first = If (p) <then_branch = t () => (double[2] a) { a = Sin (z) },
                        else_branch = e () => (double[2] b) { b = Sqrt (z) }>
        y = If (p) <then_branch = t2 () => (double[2] c) { c = Reciprocal (first) },
                    else_branch = e2 () => (double[2] d) { d = Neg (w) }>
    }""")
    gradient = cfad.vjp(model, wrt=["z", "w"], target="cuda").proto()
    feeds = {"z": np.asarray([0.0, 0.5]), "w": np.ones(2), "p": np.asarray(False), "y_grad": np.ones(2)}
    found = run_ort(gradient, feeds)
    np.testing.assert_array_equal(found["z_grad"], [0, 0])
    np.testing.assert_array_equal(found["w_grad"], [-1, -1])
