"""What ``INITIALIZERS`` stands for: weights in any scope, as initializers or as Constant nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
m (float[2,3] x, bool deep) => (float[2,4] y, float[2,2,6] z) <float[4] bias = {1, 2, 3, 4}, float[2] fold = {2, 2}> {
    half = Constant <value_float = 0.5> ()
    scales = Constant <value = float[3] {1, 2, 2}> ()
    low = Constant <value = float {-100.0}> ()
    shared = Constant <value = float[3] {0.5, 1.0, 2.0}> ()
    scaled = Mul (x, shared)
    h = If (deep) <
        then_branch = t () => (float[2,4] a) {
            w = Constant <value = float[3,4] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> ()
            two = Constant <value = float[1] {2.0}> ()
            quarter = Mul (half, half)
            p = MatMul (scaled, w)
            q = Pow (p, two)
            a = Mul (q, quarter)
        },
        else_branch = e () => (float[2,4] b) <float[3,4] v = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1}> {
            b = MatMul (scaled, v)
        }
    >
    c = Clip (h, low)
    y = Add (c, bias)
    first = Constant <value = int64[1] {0}> ()
    row = Unsqueeze (x, first)
    z = Resize <mode = "linear"> (row, , scales)
}"""


def test_weights_are_found_in_every_scope() -> None:
    assert cfad.vjp(onnx.parser.parse_model(MODEL), wrt=cfad.INITIALIZERS, outputs=["y"]).report.wrt == (
        "bias",
        "shared",
        "main/if_0/then:w",
        "main/if_0/else:v",
    )


def test_scales_that_are_joined_and_reshaped_are_no_weights() -> None:
    text = """m (float[1,2,4,4] x) => (float[1,2,K,L] y) <float[2] fixed = {1.0, 1.0}, float[2] bias = {0.5, 1.5}> {
        factor = Constant <value = double[2] {2.0, 2.0}> ()
        axes = Constant <value = int64[2] {0, 2}> ()
        shape = Constant <value = int64[4] {1, 2, 1, 1}> ()
        cast = Cast <to = 1> (factor)
        scales = Concat <axis = 0> (fixed, cast)
        b = Reshape (bias, shape)
        moved = Add (x, b)
        y = Resize <mode = "linear"> (moved, , scales)
    }"""
    gradient = cfad.vjp(model(text), wrt=cfad.INITIALIZERS)
    assert gradient.report.wrt == ("bias",)
    found = run_ort(gradient.proto(), {"x": np.ones((1, 2, 4, 4), np.float32), "y_grad": np.ones((1, 2, 8, 8), "f")})
    np.testing.assert_allclose(found["bias_grad"], [64, 64], rtol=1e-6)


@pytest.mark.parametrize("deep", [True, False])
def test_gradients_by_constants_of_branches(deep: bool) -> None:
    gradient = cfad.vjp(onnx.parser.parse_model(MODEL), wrt=cfad.INITIALIZERS, outputs=["y"]).proto()
    x, seed = (
        np.asarray([[1, -2, 0.5], [0.3, 0.1, -1]], np.float32),
        np.asarray(np.arange(8.0), np.float32).reshape(2, 4),
    )
    found = run_ort(gradient, {"x": x, "deep": np.asarray(deep), "y_grad": seed})
    scaled = x * np.asarray([0.5, 1, 2], np.float32)
    w = np.arange(1.0, 13).reshape(3, 4)
    product = scaled @ w
    np.testing.assert_allclose(found["main/if_0/then:w_grad"], deep * scaled.T @ (seed * product / 2), rtol=1e-5)
    np.testing.assert_allclose(found["main/if_0/else:v_grad"], (not deep) * scaled.T @ seed, rtol=1e-5)
    np.testing.assert_allclose(found["bias_grad"], seed.sum(0))


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("wrt", [cfad.INITIALIZERS, ["main/if_0/then:a", "main/if_0/else:b"]], ids=["all", "named"])
def test_constant_that_is_the_result_of_a_branch(wrt: Any, up: bool) -> None:
    text = """m (bool up) => (float[2] y) {
        z = If (up) <
            then_branch = t () => (float[2] a) { a = Constant <value = float[2] {1.0, 2.0}> () },
            else_branch = e () => (float[2] b) <float[2] b = {3.0, 4.0}> {}
        >
        y = Mul (z, z)
    }"""
    gradient = cfad.vjp(model(text), wrt=wrt)
    assert set(gradient.report.wrt) == {"main/if_0/then:a", "main/if_0/else:b"}
    check_emitted(gradient.proto())
    found = run_ort(gradient.proto(), {"up": np.asarray(up), "y_grad": np.ones(2, np.float32)})
    np.testing.assert_array_equal(found["main/if_0/then:a_grad"], [2, 4] if up else [0, 0])
    np.testing.assert_array_equal(found["main/if_0/else:b_grad"], [0, 0] if up else [6, 8])
    validation = cfad.validate(model(text), gradient, {"up": np.asarray(up)})
    assert validation.holds, str(validation)


def test_model_without_weights_is_refused() -> None:
    text = "m (float[2] x) => (float[2] y) { c = Constant <value_float = 2.0> () y = Mul (x, c) }"
    with pytest.raises(ModelError, match="no floating-point initializer"):
        cfad.vjp(model(text), wrt=cfad.INITIALIZERS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w", r"it is computed, by Constant. Did you mean 'main/if_0/then:w'\?"),
        ("nothing", r"inputs and initializers are 'x', 'deep', 'bias', .*/then:w'"),
    ],
)
def test_weights_inside_branches_are_told_where_a_name_is_not_there(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        cfad.vjp(onnx.parser.parse_model(MODEL), wrt=[name])
