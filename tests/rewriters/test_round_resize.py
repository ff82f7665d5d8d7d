"""A Resize by a factor whose product with a length is a hair below a whole number, which ONNX Runtime rounds up."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.round_resize import RoundResizePass
from tests.execution import run_in_onnxruntime
from tests.graph.reading import parsed
from tests.rewriters.check_pass import assert_pass_keeps_meaning

TYPE = np.float32
MODES = {
    "linear": 'mode = "linear"',
    "corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
    "cubic": 'mode = "cubic"',
    "nearest": 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
}
# lengths, factors, lengths in ONNX Runtime, whether sizes say the same
CASES = {
    "quotients": ((5, 5), (1.8, 1.8), (9, 9), True),
    "smaller": ((10, 20), (0.7, 0.7), (7, 14), True),
    "mixed": ((5, 4), (1.8, 1.8), (9, 7), False),
    "mixed-smaller": ((11, 10), (0.7, 0.7), (7, 7), False),
    "clear": ((4, 6), (1.75, 0.5), (7, 3), None),
}


def text(lengths: tuple[int, ...], factors: tuple[float, ...], attributes: str) -> str:
    dims, scales = ", ".join(map(str, lengths)), ", ".join(map(str, factors))
    return f"""(float[1, 2, {dims}] x) => (float[a, b, c, d] y) <float[4] s = {{1, 1, {scales}}}> {{
        z = Resize <{attributes}> (x, , s)
        y = Sin (z)
    }}"""


def rounding(model: object) -> RoundResizePass:
    infer_types(model)  # type: ignore[arg-type]
    return RoundResizePass()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["quotients", "smaller", "clear"])
def test_sizes_change_no_bit(name: str, mode: str) -> None:
    lengths, factors, _, quotient = CASES[name]
    x = np.random.default_rng(0).standard_normal((1, 2, *lengths)).astype(TYPE)
    assert_pass_keeps_meaning(rounding, text(lengths, factors, MODES[mode]), {"x": x}, modifies=quotient is not None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_gradient_has_the_size_of_onnxruntime(name: str, mode: str) -> None:
    lengths, factors, expected, quotient = CASES[name]
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> g {text(lengths, factors, MODES[mode])}')
    gradient = cfad.vjp(proto)
    onnx.checker.check_model(gradient.proto(), full_check=True)
    rng = np.random.default_rng(1)
    x, seed = (rng.standard_normal((1, 2, *dims)).astype(TYPE) for dims in (lengths, expected))
    primal = run_in_onnxruntime(proto, {"x": x})["y"]
    results = run_in_onnxruntime(gradient.proto(), {"x": x, "y_grad": seed})
    assert results["y"].shape == primal.shape == seed.shape
    np.testing.assert_allclose(results["y"], primal, rtol=0, atol=0 if quotient is not False else 1e-5)
    validation = cfad.validate(proto, gradient, feeds={"x": x})
    assert validation.holds, str(validation)
    for mode_of in ("reverse", "forward"):
        made = cfad.vjp(proto) if mode_of == "reverse" else cfad.jvp(proto)
        assert cfad.validate(proto, made, feeds={"x": x}).holds


def test_each_resize_of_a_chain_starts_from_the_rounded_size() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]> g (float[1, 5] x) => (float[m, n] y)
        <float[2] s = {1, 1.8}, float[2] t = {1, 2.8}> {
        z = Resize <mode = "linear"> (x, , s)
        w = Resize <mode = "linear"> (z, , t)
        y = Resize <mode = "linear"> (w, , s)
    }""")
    gradient = cfad.vjp(proto)
    x = np.arange(5, dtype=TYPE)[None]
    primal = run_in_onnxruntime(proto, {"x": x})["y"]
    assert primal.shape == (1, 45)  # 5, 9, 25, 45
    results = run_in_onnxruntime(gradient.proto(), {"x": x, "y_grad": np.ones((1, 45), TYPE)})
    np.testing.assert_array_equal(results["y"], primal)
    assert results["x_grad"].sum() == pytest.approx(45, rel=1e-5)  # weights of each place add up to 1


def test_factor_that_may_be_fed_and_unknown_lengths_stay() -> None:
    for declared in ("(float[5] x, float[1] s) => (float[n] y)", "(float[k] x) => (float[n] y) <float[1] s = {1.8}>"):
        model = parsed(f"{declared} {{ y = Resize (x, , s) }}")
        infer_types(model)
        assert not RoundResizePass()(model).modified
