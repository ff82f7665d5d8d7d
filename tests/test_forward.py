"""Forward mode and forward over reverse: interface, what they carry, and agreement with references made elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from onnx_cfad.forward import push_forward
from onnx_cfad.inspection import inspect
from onnx_cfad.model import load
from onnx_cfad.options import Options
from tests.execution import operators
from tests.oracle import DOUBLE, check_emitted, node_model, run_ort
from tests.test_cases import CASES, FLOAT64_TOLERANCE, LONG, arrays_of, each_dtype, in_dtype, path_of, run, tolerance_of

LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (double[3] x, double[3] w, int64 n) => (double[3] y, double[k, 3] rows) {
    y, steps, rows = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] fixed)
        => (bool d, double[3] next, double[3] same, double[3] row) {
        d = Identity (c)
        u = Mul (h, fixed)
        next = Sin (u)
        same = Cos (fixed)
        row = Add (next, h)
    }>
}"""


def loop_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(LOOP)


@each_dtype("gradient", "gradient or clear error")
def test_tangents_agree_with_the_reference_gradients(name: str, dtype: str) -> None:
    """<seed, J t> by forward mode equals <gradient, t> with the gradients that the cases bring."""
    case, arrays = CASES[name], arrays_of(name)
    weights = case.get("wrt_init", [])
    if name in LONG or "Det" in operators(onnx.load(path_of(name, dtype))):
        pytest.skip("long, or refused with the reason that test_cases checks")
    if any(key.startswith("allow_") for key in arrays):
        pytest.skip("a kink: the derivative depends on the direction")
    try:
        emitted = cfad.jvp(path_of(name, dtype), wrt=[*case["wrt"], *weights], outputs=case["outputs_seeded"]).proto()
    except cfad.CfadError:
        assert "clear error" in case["expect"]
        return
    rng = np.random.default_rng(4)
    keys = {**{k: f"grad_{k}" for k in case["wrt"]}, **{k: f"gradinit_{k}" for k in weights}}
    tangents = {k: rng.standard_normal(arrays[key].shape) for k, key in keys.items()}
    feeds = {key[3:]: in_dtype(array, dtype) for key, array in arrays.items() if key.startswith("in_")}
    found = run(emitted, {**feeds, **{f"{k}_tangent": t.astype(dtype) for k, t in tangents.items()}})
    pushed = sum(float(np.sum(arrays[f"cot_{k}"] * found[f"{k}_tangent"])) for k in case["outputs_seeded"])
    pulled = [np.sum(arrays[key] * tangents[k]) for k, key in keys.items()]
    size = float(sum(np.linalg.norm(arrays[key]) * np.linalg.norm(tangents[k]) for k, key in keys.items()))
    assert abs(pushed - sum(pulled)) <= 10 * tolerance_of(name, dtype) * max(size, FLOAT64_TOLERANCE)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.get("order") == 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hvp_is_the_reference_hessian_times_the_tangent(name: str, dtype: str) -> None:
    case, arrays = CASES[name], arrays_of(name)
    (wrt,), (loss,) = case["wrt"], case["outputs_seeded"]
    emitted = cfad.hvp(path_of(name, dtype), loss=loss, wrt=[wrt]).proto()
    check_emitted(emitted)
    feeds = {key[3:]: in_dtype(array, dtype) for key, array in arrays.items() if key.startswith("in_")}
    for direction in (*np.eye(len(arrays[f"hess_{wrt}"])), np.asarray([0.3, -1.7])):
        found = run(emitted, {**feeds, f"{wrt}_tangent": direction.astype(dtype)})[f"{wrt}_grad_tangent"]
        expected = arrays[f"hess_{wrt}"] @ direction * arrays[f"cot_{loss}"]
        np.testing.assert_allclose(found, expected, rtol=10 * tolerance_of(name, dtype), atol=1e-6)


def test_interface_of_forward_mode() -> None:
    emitted = cfad.jvp(loop_model(), wrt=["x"])
    assert [i.name for i in emitted.proto().graph.input] == ["x", "w", "n", "x_tangent"]
    assert [o.name for o in emitted.proto().graph.output] == ["y", "rows", "y_tangent", "rows_tangent"]
    assert (emitted.report.mode, emitted.report.order) == ("forward", 1)


def test_a_loop_carries_only_tangents_that_are_not_zero() -> None:
    """One more carry for x, one more stack, and none for the carry that depends on w alone; no tape."""
    (loop,) = [n for n in cfad.jvp(loop_model(), wrt=["x"]).proto().graph.node if n.op_type == "Loop"]
    assert len(loop.input) == 2 + 3
    assert len(loop.output) == 3 + 2
    body = loop.attribute[0].g
    assert len(body.input) == 2 + 3


def test_derivative_by_a_carry_that_starts_constant() -> None:
    """w enters by its use in the body: the tangent of h starts as zeros and is carried."""
    feeds = {"x": np.asarray([0.3, -0.2, 0.9]), "w": np.asarray([1.1, 0.4, -0.7]), "n": np.asarray(3)}
    t = np.asarray([0.5, 1.5, -1.0])
    found = run_ort(cfad.jvp(loop_model(), wrt=["w"]).proto(), {**feeds, "w_tangent": t})
    ahead, behind = (run_ort(loop_model(), {**feeds, "w": feeds["w"] + s * t}) for s in (1e-6, -1e-6))
    np.testing.assert_allclose(found["rows_tangent"], (ahead["rows"] - behind["rows"]) / 2e-6, atol=1e-8)


def test_an_output_that_depends_on_nothing_has_the_tangent_zero() -> None:
    nodes = [helper.make_node("Sin", ["x"], ["y"]), helper.make_node("Cos", ["z"], ["v"])]
    feeds = {"x": np.ones(2), "z": np.ones(3)}
    emitted = cfad.jvp(node_model(nodes, feeds, outputs={"y": DOUBLE, "v": DOUBLE}), wrt=["x"])
    assert "'v'" in emitted.report.warnings[0]
    found = run_ort(emitted.proto(), {**feeds, "x_tangent": np.ones(2)})
    np.testing.assert_array_equal(found["v_tangent"], np.zeros(3))


@pytest.mark.parametrize("op_type", ["Sqrt", "Log", "Reciprocal"])
def test_a_pole_behind_a_cut_gives_zero(op_type: str) -> None:
    """The tangent is exactly zero where Where took the constant: zero times infinity is not NaN."""
    nodes = [helper.make_node("Where", ["c", "x", "zero"], ["t"]), helper.make_node(op_type, ["t"], ["y"])]
    feeds = {"x": np.asarray([4.0, 4.0])}
    model = node_model(nodes, feeds, constants={"c": np.asarray([True, False]), "zero": np.asarray(0.0)})
    found = run_ort(cfad.jvp(model, wrt=["x"]).proto(), {**feeds, "x_tangent": np.ones(2)})["y_tangent"]
    assert np.isfinite(found[0])
    assert found[1] == 0


def test_taken_names_are_numbered_so_that_forward_mode_can_be_repeated() -> None:
    """Forward over forward: the second derivative along two directions."""
    model = node_model(helper.make_node("Sin", ["x"], ["y"]), {"x": np.ones(2)}, outputs={"y": DOUBLE})
    first = cfad.jvp(model, wrt=["x"])
    second = cfad.jvp(first.proto(), wrt=["x"], outputs=["y_tangent"])
    assert second.report.order == 2
    x, u, v = np.asarray([0.3, 1.2]), np.asarray([1.0, 2.0]), np.asarray([-0.5, 0.25])
    (taken,) = second.report.tangents.values()
    (result,) = second.report.pushed.values()
    found = run_ort(second.proto(), {"x": x, "x_tangent": u, taken: v})
    np.testing.assert_allclose(found[result], -np.sin(x) * u * v)


@pytest.mark.parametrize("options", [{"clip_value": 1.0}, {"plan": "taped"}, {"replace_nan": True}])
def test_options_of_a_reverse_pass_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(cfad.PlanError, match="reverse pass"):
        push_forward(load(loop_model()), Options(wrt=("x",), mode="forward", **options))


def test_inspect_says_mode_and_order() -> None:
    first = inspect(cfad.jvp(loop_model(), wrt=["x"]).proto())
    assert (first.mode, first.order) == ("forward", 1)
    again = inspect(cfad.vjp(cfad.jvp(loop_model(), wrt=["x"]).proto(), wrt=["w"], outputs=["y_tangent"]).proto())
    assert (again.mode, again.order) == ("reverse", 2)
    assert (inspect(loop_model()).mode, inspect(loop_model()).order) == ("", 0)


def test_hvp_needs_a_loss() -> None:
    with pytest.raises(cfad.ModelError, match="loss"):
        cfad.hvp(loop_model(), loss="", wrt=["x"])


def test_validate_finds_a_wrong_tangent() -> None:
    emitted = cfad.jvp(loop_model(), wrt=["x"]).proto()
    assert cfad.validate(loop_model(), emitted).holds
    wrong = [node for node in emitted.graph.node if node.output[0] == "y_tangent"]
    wrong[0].op_type = "Neg"
    validation = cfad.validate(loop_model(), emitted)
    assert not validation.holds
    assert [row.name for row in validation.rows if row.verdict.value != "ok"] == ["y"]
    with pytest.raises(cfad.ValidationError, match="output 'y'.*the tangent is wrong"):
        validation.raise_if_failed()


def test_validate_finds_a_wrong_hessian() -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("ReduceSum", ["t"], ["loss"], keepdims=0)]
    model = node_model(nodes, {"x": np.ones(3)}, outputs={"loss": DOUBLE})
    emitted = cfad.hvp(model, loss="loss", wrt=["x"]).proto()
    assert cfad.validate(model, emitted).holds
    next(node for node in emitted.graph.node if node.output[0] == "x_grad_tangent").op_type = "Abs"
    assert not cfad.validate(model, emitted).holds


def test_commands(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(loop_model(), path)
    runner = CliRunner()
    result = runner.invoke(app, ["transform", str(path), "--mode", "forward", "--wrt", "x"])
    assert result.exit_code == 0, result.output
    assert "mode: forward, order 1" in result.output
    assert (tmp_path / "m.jvp.onnx").is_file()
    result = runner.invoke(app, ["validate", str(path), str(tmp_path / "m.jvp.onnx")])
    assert result.exit_code == 0, result.output
    assert "2 of 2 tangents hold" in result.output
    result = runner.invoke(app, ["transform", str(path), "--mode", "sideways"])
    assert result.exit_code == 2
    assert "sideways" in result.output
