"""Which loops are fixed-point iterations: many that are, in different dress, and many that only look like one."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnx_cfad.graph.fixed_point import FixedPoint, find_fixed_point
from onnx_cfad.graph.regions import control_flow, is_loop, loop_site
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import load, normalise

# A loop as ``carries | body``; the condition is ``go``. Each carry is ``name = initial``; its exit is ``name1``.
DEQ = "p = MatMul (W, z)  q = Add (p, x)  z1 = Tanh (q)  d = Sub (z1, z)"
FIXED_POINTS = {
    "picard_max": ("z = z0", f"{DEQ} a = Abs (d) r = ReduceMax <keepdims=0> (a) go = Greater (r, tol)"),
    "picard_l2": ("z = z0", f"{DEQ} r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"),
    "picard_l1": ("z = z0", f"{DEQ} r = ReduceL1 <keepdims=0> (d) done = Less (r, tol) go = Not (done)"),
    "picard_mean_square": (
        "z = z0",
        f"{DEQ} s = Mul (d, d) r = ReduceMean <keepdims=0> (s) go = GreaterOrEqual (r, tol)",
    ),
    "picard_root_of_squares": (
        "z = z0",
        (
            f"{DEQ} two = Constant <value_float = 2.0> () s = Pow (d, two) t = ReduceSum <keepdims=0> (s) r = Sqrt (t) "
            "go = Less (tol, r)"
        ),
    ),
    "picard_relative": (
        "z = z0",
        f"{DEQ} a = ReduceL2 <keepdims=0> (d) b = ReduceL2 <keepdims=0> (z1) r = Div (a, b) go = Greater (r, tol)",
    ),
    "picard_relative_threshold": (
        "z = z0",
        f"{DEQ} r = ReduceL2 <keepdims=0> (d) b = ReduceL2 <keepdims=0> (z) t = Mul (tol, b) go = Greater (r, t)",
    ),
    "picard_and_cap": (
        "z = z0; k = zero",
        (
            f"{DEQ} a = Abs (d) r = ReduceMax <keepdims=0> (a) more = Greater (r, tol) k1 = Add (k, one) "
            "below = Less (k1, most) go = And (more, below)"
        ),
    ),
    "picard_not_or_cap": (
        "z = z0; k = zero",
        (
            f"{DEQ} a = Abs (d) r = ReduceMax <keepdims=0> (a) fine = LessOrEqual (r, tol) k1 = Add (k, one) "
            "over = GreaterOrEqual (k1, most) stop = Or (fine, over) go = Not (stop)"
        ),
    ),
    "picard_at_least_some": (
        "z = z0",
        (
            f"{DEQ} a = Abs (d) r = ReduceMax <keepdims=0> (a) more = Greater (r, tol) early = Less (i, most) "
            "go = Or (more, early)"
        ),
    ),
    "picard_short_circuit": (
        "z = z0; k = zero",
        (
            f"{DEQ} a = Abs (d) r = ReduceMax <keepdims=0> (a) more = Greater (r, tol) k1 = Add (k, one) "
            "go = If (more) <"
            "then_branch = g1 () => (bool t) { t = Less (k1, most) }, "
            "else_branch = g2 () => (bool f) { f = Constant <value = bool {0}> () }>"
        ),
    ),
    "picard_previous_carried": (
        "z = z0; before = z0",
        (
            f"{DEQ} before1 = Identity (z) e = Sub (z1, before1) a = Abs (e) r = ReduceMax <keepdims=0> (a) "
            "go = Greater (r, tol)"
        ),
    ),
    "picard_residual_carried": (
        "z = z0; r = large",
        f"{DEQ} r1 = ReduceL2 <keepdims=0> (d) go = Greater (r1, tol)",
    ),
    "picard_residual_one_late": (
        "z = z0; r = large",
        f"{DEQ} r1 = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)",
    ),
    "picard_checked_once_more": (
        "z = z0",
        (
            "p = MatMul (W, z)  q = Add (p, x)  z1 = Tanh (q) p2 = MatMul (W, z1)  q2 = Add (p2, x)  z2 = Tanh (q2) "
            "d = Sub (z2, z1) r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
    ),
    "any_element": (
        "z = z0",
        (
            f"{DEQ} a = Abs (d) e = Greater (a, tol) n = Cast <to = 7> (e) r = ReduceMax <keepdims=0> (n) "
            "go = Cast <to = 9> (r)"
        ),
    ),
    "newton_step": (
        "z = z0",
        (
            "s = Mul (z, z) f = Sub (s, x) h = Add (z, z) step = Div (f, h) z1 = Sub (z, step) a = Abs (step) "
            "r = ReduceMax <keepdims=0> (a) go = Greater (r, tol)"
        ),
    ),
    "newton_residual": (
        "z = z0",
        (
            "s = Mul (z, z) f = Sub (s, x) h = Add (z, z) step = Div (f, h) z1 = Sub (z, step) "
            "r = ReduceL2 <keepdims=0> (f) go = Greater (r, tol)"
        ),
    ),
    "gradient_descent": (
        "z = z0",
        (
            "p = MatMul (W, z) g = Sub (p, x) s = Mul (tol, g) z1 = Sub (z, s) r = ReduceL2 <keepdims=0> (g) "
            "go = Greater (r, tol)"
        ),
    ),
    "heavy_ball": (
        "z = z0; v = z0",
        (
            "p = MatMul (W, z) g = Sub (p, x) m = Mul (tol, v) v1 = Add (m, g) z1 = Sub (z, v1) d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
    ),
    "sinkhorn": (
        "u = z0; v = z0",
        (
            "kv = MatMul (W, v) u1 = Div (x, kv) t = Transpose (W) ku = MatMul (t, u1) v1 = Div (x, ku) "
            "d = Sub (u1, u) "
            "a = Abs (d) r = ReduceMax <keepdims=0> (a) go = Greater (r, tol)"
        ),
    ),
    "power_iteration": (
        "z = z0",
        (
            "p = MatMul (W, z) n = ReduceL2 <keepdims=1> (p) z1 = Div (p, n) d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) "
            "go = Greater (r, tol)"
        ),
    ),
    "pagerank": (
        "z = z0",
        (
            "p = MatMul (W, z) q = Mul (p, tol) z1 = Add (q, x) d = Sub (z, z1) a = Abs (d) "
            "r = ReduceSum <keepdims=0> (a) "
            "go = Greater (r, tol)"
        ),
    ),
    "coupled_both_measured": (
        "z = z0; w = z0",
        (
            "p = MatMul (W, w) z1 = Tanh (p) q = Add (z, x) w1 = Sin (q) d = Sub (z1, z) e = Sub (w1, w) "
            "r = ReduceL2 <keepdims=0> (d) s = ReduceL2 <keepdims=0> (e) t = Max (r, s) go = Greater (t, tol)"
        ),
    ),
    "weights_carried_unchanged": (
        "z = z0; c = x",
        (
            "c1 = Identity (c) p = MatMul (W, z)  q = Add (p, c)  z1 = Tanh (q)  d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
    ),
}
# What is wrong with each is a part of the reason that must be given.
LOOKALIKES = {
    "momentum_with_counter_dependent_step": (
        "z = z0; k = large",
        (
            "p = MatMul (W, z) g = Sub (p, x) k1 = Add (k, large) s = Div (g, k) z1 = Sub (z, s) d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
        "does not measure the change of 'k'",
    ),
    "step_of_the_iteration_number": (
        "z = z0",
        (
            "p = MatMul (W, z) g = Sub (p, x) c = Cast <to = 1> (i) e = Add (c, large) s = Div (g, e) z1 = Sub (z, s) "
            "d = Sub (z1, z) r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
        "depends on the iteration number",
    ),
    "early_stopped_training_by_loss": (
        "z = z0",
        (
            "p = MatMul (W, z) g = Sub (p, x) s = Mul (tol, g) z1 = Sub (z, s) h = Mul (z, g) "
            "loss = ReduceSum <keepdims=0> (h) go = Greater (loss, tol)"
        ),
        "no norm of a carry's change",
    ),
    "early_stopped_training_by_change_of_loss": (
        "z = z0; loss = large",
        (
            "p = MatMul (W, z) g = Sub (p, x) s = Mul (tol, g) z1 = Sub (z, s) h = Mul (z, g) "
            "loss1 = ReduceSum <keepdims=0> (h) d = Sub (loss1, loss) a = Abs (d) go = Greater (a, tol)"
        ),
        "",
    ),
    "history_is_read": ("z = z0", f"{DEQ} r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)", "all iterations"),
    "per_step_input": (
        "z = z0",
        (
            "row = Gather <axis = 0> (W, i) p = Mul (row, z)  q = Add (p, x)  z1 = Tanh (q)  d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
        "depends on the iteration number",
    ),
    "noise_in_the_body": (
        "z = z0",
        (
            "e = RandomNormalLike (z) p = MatMul (W, z)  q = Add (p, e)  z1 = Tanh (q)  d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
        "random numbers",
    ),
    "goes_on_while_small": ("z = z0", f"{DEQ} r = ReduceL2 <keepdims=0> (d) go = Less (r, tol)", "while the change is"),
    "signed_mean": ("z = z0", f"{DEQ} r = ReduceMean <keepdims=0> (d) go = Greater (r, tol)", ""),
    "smallest_element": ("z = z0", f"{DEQ} a = Abs (d) r = ReduceMin <keepdims=0> (a) go = Greater (r, tol)", ""),
    "stops_at_first_element": (
        "z = z0",
        (
            f"{DEQ} a = Abs (d) e = Greater (a, tol) n = Cast <to = 7> (e) r = ReduceMin <keepdims=0> (n) "
            "go = Cast <to = 9> (r)"
        ),
        "as soon as one element",
    ),
    "tolerance_schedule": (
        "z = z0",
        f"{DEQ} r = ReduceL2 <keepdims=0> (d) c = Cast <to = 1> (i) t = Mul (tol, c) go = Greater (r, t)",
        "tolerance depends on the iteration number",
    ),
    "sum_of_all_iterates": (
        "z = z0; total = z0",
        f"{DEQ} total1 = Add (total, z) r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)",
        "gathers something from all iterations",
    ),
    "part_of_the_change": (
        "z = z0",
        f"{DEQ} j = Constant <value_int = 0> () f = Gather <axis = 0> (d, j) r = Abs (f) go = Greater (r, tol)",
        "",
    ),
    "one_of_two_independent": (
        "z = z0; w = z0",
        f"{DEQ} w1 = Sin (w) r = ReduceL2 <keepdims=0> (d) keep = Identity (w) go = Greater (r, tol)",
        "gathers something from all iterations",
    ),
    "drift_that_is_not_measured": (
        "z = z0; w = z0",
        (
            "w1 = Add (w, x) p = MatMul (W, z) q = Add (p, w) z1 = Tanh (q) d = Sub (z1, z) "
            "r = ReduceL2 <keepdims=0> (d) "
            "go = Greater (r, tol)"
        ),
        "does not measure the change of 'w'",
    ),
    "escape_time": (
        "z = z0",
        "s = Mul (z, z) z1 = Add (s, x) r = ReduceL2 <keepdims=0> (z1) go = Less (r, tol)",
        "no norm of a carry's change",
    ),
    "distance_to_a_target": (
        "z = z0",
        "p = MatMul (W, z) z1 = Tanh (p) d = Sub (z1, x) r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)",
        "no norm of a carry's change",
    ),
    "bisection": (
        "lo = z0; hi = x",
        (
            "s = Add (lo, hi) m = Mul (s, tol) f = Sin (m) up = Greater (f, tol) lo1 = Where (up, lo, m) "
            "hi1 = Where (up, m, hi) d = Sub (hi1, lo1) r = ReduceL2 <keepdims=0> (d) go = Greater (r, tol)"
        ),
        "no norm of a carry's change",
    ),
    "frozen_elements": (
        "z = z0; done = none",
        (
            "p = MatMul (W, z)  q = Add (p, x)  f = Tanh (q) z1 = Where (done, z, f) d = Sub (z1, z) a = Abs (d) "
            "done1 = Less (a, tol) r = ReduceMax <keepdims=0> (a) go = Greater (r, tol)"
        ),
        "no tensor of real numbers",
    ),
    "number_of_iterations": ("z = z0", f"{DEQ} go = Less (i, most)", "does not depend on convergence"),
    "no_condition": ("z = z0", f"{DEQ} go = Identity (going)", "does not depend on convergence"),
    "last_change_only_of_one_half": (
        "z = z0; w = z0",
        (
            "p = MatMul (W, z) z1 = Tanh (p) w1 = Sin (z) d = Sub (w1, w) e = Abs (d) r = ReduceMax <keepdims=0> (e) "
            "go = Greater (r, tol)"
        ),
        "does not measure the change of 'z'",
    ),
}


def loop(carries: str, body: str, *, history: bool = False) -> onnx.ModelProto:
    """A model of one loop ``main/loop``, by the texts of its carries and its body."""
    pairs = [tuple(part.strip() for part in text.split("=")) for text in carries.split(";")]
    kinds = {"zero": "int64", "large": "float", "none": "bool[4]"}
    typed = [(kinds.get(initial, "float[4]"), name) for name, initial in pairs]
    entries = ", ".join(f"{kind} {name}" for kind, name in typed)
    exits = ", ".join(f"{kind} {name}1" for kind, name in typed)
    finals = ", ".join(f"{kind} {name}_end" for kind, name in typed)
    rows = ", float[K,4] rows" if history else ""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    test (float[4] x, float[4] z0, float[4,4] W, float tol, int64 most) => ({finals}{rows}) {{
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        large = Constant <value_float = 2.0> ()
        true = Constant <value = bool {{1}}> ()
        none = Constant <value = bool[4] {{0, 0, 0, 0}}> ()
        [loop] {", ".join(f"{name}_end" for _, name in typed)}{", rows" if history else ""} = Loop (, true,
            {", ".join(initial for _, initial in pairs)}) <
            body = step (int64 i, bool going, {entries}) => (bool go, {exits}{", float[4] row" if history else ""}) {{
                {body} {"row = Identity (z1)" if history else ""}
            }}>
    }}"""
    return onnx.parser.parse_model(text)


def found(model: onnx.ModelProto | ir.Model | str) -> list[FixedPoint]:
    """What is found of every loop of a model."""
    normal = normalise(load(model))
    infer_types(normal)
    return [find_fixed_point(loop_site(site.node)) for site in control_flow(normal).sites() if is_loop(site.node)]


@pytest.mark.parametrize("name", FIXED_POINTS)
def test_fixed_point_is_found(name: str) -> None:
    model = loop(*FIXED_POINTS[name])
    onnx.checker.check_model(model, full_check=True)
    (result,) = found(model)
    assert result.found, result.why_not
    assert 0 in result.states
    assert str(result).startswith("fixed point: stops by the ")


@pytest.mark.parametrize("name", LOOKALIKES)
def test_lookalike_is_not_taken_for_one(name: str) -> None:
    carries, body, why = LOOKALIKES[name]
    model = loop(carries, body, history=name == "history_is_read")
    onnx.checker.check_model(model, full_check=True)
    (result,) = found(model)
    assert not result.found
    assert why in result.why_not


def test_there_are_enough_loops() -> None:
    assert len(FIXED_POINTS) >= 15
    assert len(LOOKALIKES) >= 10


def test_carries_have_roles() -> None:
    (result,) = found(loop(*FIXED_POINTS["picard_residual_carried"]))
    assert (result.states, result.residuals) == ((0,), (1,))
    (result,) = found(loop(*FIXED_POINTS["picard_previous_carried"]))
    assert (result.states, result.residuals) == ((0, 1), ())
    (result,) = found(loop(*FIXED_POINTS["picard_and_cap"]))
    assert (result.states, result.bookkeeping, result.capped) == ((0,), (1,), True)
    (result,) = found(loop(*FIXED_POINTS["weights_carried_unchanged"]))
    assert (result.states, result.invariants) == ((0,), (1,))


def test_a_fixed_number_of_iterations_may_be_asked_for() -> None:
    (result,) = found(loop(*LOOKALIKES["no_condition"][:2]))
    assert not result.obstacles
    assert result.states == (0,)


@pytest.mark.parametrize("name", ["heat", "neural_ode", "gnmt_v2"])
def test_loops_of_real_models_that_are_none(name: str) -> None:
    assert not any(result.found for result in found(f"models/{name}.onnx"))


def test_torchscript_export_is_found() -> None:
    (result,) = found("models/equilibrium.onnx")
    assert result.found, result.why_not
    assert str(result) == "fixed point: stops by the largest element of the change of 'z.13' < 1e-06, or by its cap"


def test_program_export_is_found() -> None:
    (result,) = found("models/equilibrium_while.onnx")
    assert result.found, result.why_not
    assert (result.capped, len(result.states), len(result.bookkeeping)) == (True, 2, 1)


# Other criteria in what PyTorch 2.13 exports (dynamo) for ``torch.while_loop``: all that is captured stays outside.
DYNAMO = """<ir_version: 10, opset_import: ["" : 20]>
main_graph (float[2,4] linear, float[4,4] w, float[2,4] zeros, float[2,4] add) => (float[2,4] getitem_1)
<int64 clone = {0}, int64 val_0_3 = {1}, int64 val_1_3 = {100}, float val_0_4 = {1e-6}, int64[1] val_1 = {1},
 bool go = {1}> {
   [node_while_loop__2] while_loop__0, getitem_1, while_loop__2 = Loop ("", go, clone, zeros, add) <body = loop_body (
      int64 iter_num, bool cond_in, int64 k_in, float[2,4] z_in, float[2,4] before_in
   ) => (bool bitwise_and, int64 k_out, float[2,4] tanh, float[2,4] clone_out) {
      [node_add_2] k_out = Add (k_in, val_0_3)
      [node_matmul] matmul = MatMul (z_in, w)
      [node_add_1] add_1 = Add (matmul, linear)
      [node_tanh] tanh = Tanh (add_1)
      [node_clone_2] clone_out = Identity (z_in)
      [node_sub_2] sub_2 = Sub (tanh, z_in)
      CRITERION
      [node_lt_2] lt_2 = Less (k_out, val_1_3)
      [node_bitwise_and_2] bitwise_and = And (gt_2, lt_2)
   }>
}"""
CRITERIA = {
    "largest": "abs_1 = Abs (sub_2) max_1 = ReduceMax <noop_with_empty_axes = 0, keepdims = 0> (abs_1) "
    "gt_2 = Greater (max_1, val_0_4)",
    "relative_norm": "m1 = Constant <value_ints = [-1]> () val_2 = Reshape <allowzero = 0> (sub_2, m1) "
    "n = ReduceL2 <keepdims = 0> (val_2) val_4 = Reshape <allowzero = 0> (tanh, m1) "
    "n1 = ReduceL2 <keepdims = 0> (val_4) div = Div (n, n1) gt_2 = Greater (div, val_0_4)",
    "any_row": "n = ReduceL2 <noop_with_empty_axes = 0, keepdims = 0> (sub_2, val_1) gt = Greater (n, val_0_4) "
    "val_5 = Cast <to = 7> (gt) val_6 = ReduceMax <noop_with_empty_axes = 0, keepdims = 0> (val_5) "
    "gt_2 = Cast <to = 9> (val_6)",
}


@pytest.mark.parametrize("criterion", CRITERIA)
def test_dynamo_export_is_found(criterion: str) -> None:
    (result,) = found(onnx.parser.parse_model(DYNAMO.replace("CRITERION", CRITERIA[criterion])))
    assert result.found, result.why_not
