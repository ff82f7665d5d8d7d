"""Straight-through estimators: against the closed form, PyTorch's fake quantisation written in NumPy, and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from tests.oracle import check_emitted, run_ort

X = np.array([-9.3, -1.26, -0.4, 0.2, 0.55, 1.49, 2.6, 40.0])


def gradients(text: str, feeds: dict[str, Any], ops: list[str], **options: Any) -> dict[str, Any]:
    emitted = cfad.vjp(onnx.parser.parse_model(text), straight_through=ops, **options).proto()
    check_emitted(emitted)
    return run_ort(emitted, {name: np.asarray(value) for name, value in feeds.items()})


def unary(op_type: str) -> str:
    return f'<ir_version: 10, opset_import: ["": 21]> m (double[8] x) => (double[8] y) {{ y = {op_type} (x) }}'


@pytest.mark.parametrize("op_type", ["Round", "Floor", "Ceil", "Sign"])
def test_rounding_passes_the_cotangent_only_when_asked(op_type: str) -> None:
    feeds = {"x": X, "y_grad": np.arange(8.0)}
    assert (gradients(unary(op_type), feeds, [op_type])["x_grad"] == feeds["y_grad"]).all()
    assert not gradients(unary(op_type), feeds, [])["x_grad"].any()
    other = "Floor" if op_type != "Floor" else "Ceil"
    assert not gradients(unary(op_type), feeds, [other])["x_grad"].any()


def quantised(dims: str = "8", scale: str = "float s", zero: str = "uint8 z", attributes: str = "") -> str:
    return (
        f'<ir_version: 10, opset_import: ["": 21]> m (float[{dims}] x, {scale}, {zero}) => (float[{dims}] y) '
        f"{{ q = QuantizeLinear {attributes} (x, s, z) y = DequantizeLinear {attributes} (q, s, z) }}"
    )


def fake_quantised(x: Any, s: Any, z: Any, low: int, high: int, ct: Any) -> tuple[Any, Any]:
    """Gradients by x and, elementwise, by s: torch.fake_quantize and the learned step size."""
    whole = np.round(x / s) + z
    inside = (whole >= low) & (whole <= high)
    by_s = np.where(inside, np.round(x / s) - x / s, np.clip(whole, low, high) - z)
    return np.where(inside, ct, 0), ct * by_s


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint4", "int4"])
def test_quantisation_is_clipped_and_its_scale_learned(kind: str) -> None:
    import ml_dtypes

    dtype = np.dtype(kind) if "4" not in kind else np.dtype(getattr(ml_dtypes, kind))
    x, ct, s = X.astype(np.float32), np.linspace(1, 2, 8, dtype=np.float32), np.float32(0.3)
    z = np.asarray(3 if kind != "int16" else 0).astype(dtype)
    text = quantised(zero=f"{kind} zz" if "4" in kind else f"{kind} z")
    if "4" in kind:  # ONNX Runtime takes no NumPy array of four bits
        text = text.replace(f", {kind} zz", "").replace(
            "{ q", f"{{ z = Cast <to = {21 if kind[0] == 'u' else 22}> (w) q"
        )
        text = text.replace("float s)", "float s, int32 w)")
    feeds = {"x": x, "s": s, "y_grad": ct, **({"w": np.int32(3)} if "4" in kind else {"z": z})}
    found = gradients(text, feeds, ["QuantizeLinear"], wrt=["x", "s"])
    info = ml_dtypes.iinfo(dtype) if "4" in kind else np.iinfo(dtype)
    by_x, by_s = fake_quantised(x.astype(float), float(s), float(z), int(info.min), int(info.max), ct)
    np.testing.assert_allclose(found["x_grad"], by_x, rtol=1e-6)
    np.testing.assert_allclose(found["s_grad"], by_s.sum(), rtol=1e-4)
    held = gradients(text, feeds, [], wrt=["x", "s"])
    assert not held["x_grad"].any()
    np.testing.assert_allclose(
        held["s_grad"], np.sum(ct * (np.clip(np.round(x / s) + float(z), info.min, info.max) - float(z))), rtol=1e-5
    )


def test_scales_along_an_axis_and_moved_integers() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> m (float[N,3] x, float[3] s) => (float[3,N] y) '
        "{ q = QuantizeLinear <axis = 1> (x, s) t = Transpose (q) y = DequantizeLinear <axis = 0> (t, s) }"
    )
    rng = np.random.default_rng(1)
    x, s = rng.normal(size=(5, 3)).astype(np.float32) + 1, np.array([0.1, 0.01, 0.003], np.float32)
    ct = rng.normal(size=(3, 5)).astype(np.float32)
    found = gradients(text, {"x": x, "s": s, "y_grad": ct}, ["QuantizeLinear"], wrt=["x", "s"])
    by_x, by_s = fake_quantised(x.astype(float), s.astype(float), 0, 0, 255, ct.T)
    np.testing.assert_allclose(found["x_grad"], by_x, rtol=1e-5)
    np.testing.assert_allclose(found["s_grad"], by_s.sum(0), rtol=1e-3)


@pytest.mark.parametrize("plan", ["taped", "checkpointed", "unrolled"])
def test_inside_a_loop_under_every_plan(plan: str) -> None:
    """Each step multiplies by w and rounds to tenths: straight through, dy/dx is w^3."""
    text = """<ir_version: 10, opset_import: ["": 21]> m (float[2] x, float w) => (float[2] y) {
        n = Constant <value = int64 {3}> ()
        y = Loop (n, , x) <body = b (int64 i, bool c, float[2] h) => (bool go, float[2] new) {
            s = Constant <value = float {0.1}> ()
            go = Identity (c)
            p = Mul (h, w)
            q = QuantizeLinear (p, s)
            new = DequantizeLinear (q, s)
        }>
    }"""
    feeds = {"x": np.array([1, 2], np.float32), "w": np.float32(1.5), "y_grad": np.ones(2, np.float32)}
    found = gradients(text, feeds, ["QuantizeLinear"], plan=plan)
    np.testing.assert_allclose(found["x_grad"], [1.5**3] * 2, rtol=1e-6)


def test_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(cfad.ModelError, match=r"'Tanh'.*Ceil, Floor, QuantizeLinear, Round, Sign"):
        cfad.vjp(onnx.parser.parse_model(unary("Round")), straight_through=["Tanh"])


def tangents(text: str, feeds: dict[str, Any], ops: list[str], **options: Any) -> dict[str, Any]:
    emitted = cfad.jvp(onnx.parser.parse_model(text), straight_through=ops, **options).proto()
    check_emitted(emitted)
    return run_ort(emitted, {name: np.asarray(value) for name, value in feeds.items()})


@pytest.mark.parametrize("op_type", ["Round", "Floor", "Ceil", "Sign"])
def test_rounding_passes_the_tangent_only_when_asked(op_type: str) -> None:
    feeds = {"x": X, "x_tangent": np.arange(8.0)}
    assert (tangents(unary(op_type), feeds, [op_type])["y_tangent"] == feeds["x_tangent"]).all()
    assert not tangents(unary(op_type), feeds, [])["y_tangent"].any()


def test_tangent_of_a_quantised_value_is_the_transpose_of_its_gradient() -> None:
    x, s, z, t_s = X.astype(np.float32), np.float32(0.3), np.uint8(3), np.float32(0.7)
    t_x = np.linspace(1, 2, 8, dtype=np.float32)
    feeds = {"x": x, "s": s, "z": z, "x_tangent": t_x, "s_tangent": t_s}
    found = tangents(quantised(zero="uint8 z"), feeds, ["QuantizeLinear"], wrt=["x", "s"])["y_tangent"]
    by_x, by_s = fake_quantised(x.astype(float), float(s), float(z), 0, 255, np.ones(8))
    np.testing.assert_allclose(found, by_x * t_x + by_s * t_s, rtol=1e-4)


def test_tangent_through_moved_integers_and_scales_along_an_axis() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> m (float[N,3] x, float[3] s) => (float[3,N] y) '
        "{ q = QuantizeLinear <axis = 1> (x, s) t = Transpose (q) y = DequantizeLinear <axis = 0> (t, s) }"
    )
    rng = np.random.default_rng(1)
    x, s = rng.normal(size=(5, 3)).astype(np.float32) + 1, np.array([0.1, 0.01, 0.003], np.float32)
    t_x, t_s = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    feeds = {"x": x, "s": s, "x_tangent": t_x, "s_tangent": t_s}
    found = tangents(text, feeds, ["QuantizeLinear"], wrt=["x", "s"])["y_tangent"]
    by_x, by_s = fake_quantised(x.astype(float), s.astype(float), 0, 0, 255, np.ones((5, 3)))
    np.testing.assert_allclose(found.T, by_x * t_x + by_s * t_s, rtol=1e-3, atol=1e-4)


def test_tangent_inside_a_loop_and_on_the_command_line(tmp_path: Path) -> None:
    """Each of 3 steps multiplies by 1.5 and rounds: straight through, dy/dx is 1.5^3."""
    text = """<ir_version: 10, opset_import: ["": 21]> m (double[2] x) => (double[2] y) {
        n = Constant <value = int64 {3}> ()
        y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] new) {
            w = Constant <value = double {1.5}> ()
            go = Identity (c)
            p = Mul (h, w)
            new = Round (p)
        }>
    }"""
    feeds = {"x": np.asarray([1.0, 2.0]), "x_tangent": np.asarray([1.0, -2.0])}
    expected = 1.5**3 * feeds["x_tangent"]
    np.testing.assert_allclose(tangents(text, feeds, ["Round"])["y_tangent"], expected)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    arguments = ["transform", str(path), "--mode", "forward", "--straight-through", "Round"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    np.testing.assert_allclose(run_ort(onnx.load(tmp_path / "m.jvp.onnx"), feeds)["y_tangent"], expected)


def test_forward_mode_refuses_an_unknown_operator_by_name() -> None:
    with pytest.raises(cfad.ModelError, match=r"'Tanh'.*Ceil, Floor"):
        cfad.jvp(onnx.parser.parse_model(unary("Round")), straight_through=["Tanh"])
