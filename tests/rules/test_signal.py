"""The rules of Fourier transforms against central differences of the operators in ONNX Runtime, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.oracle import assert_vjp

RNG = np.random.default_rng(0)
FORMS = ("static", "symbolic")


def dft(
    dims: str,
    *,
    parts: int = 2,
    length: int | None = None,
    axis: int | None = None,
    computed: bool = False,
    opset: int = 21,
    **attributes: Any,
) -> None:
    """Asserts the gradient of a DFT of [2, 6, 3, parts]."""
    x = RNG.standard_normal((2, 6, 3, parts))
    inputs, integers = ["x"], dict[str, Any]()
    if length is not None:
        integers["length"] = np.asarray(length)
    if axis is not None and opset >= 20:
        integers["axis"] = np.asarray(axis)
    inputs += [name if name in integers else "" for name in ("length", "axis")]
    while not inputs[-1]:  # ONNX Runtime crashes on an axis without a name
        inputs.pop()
    if axis is not None and opset < 20:
        attributes["axis"] = axis
    node = helper.make_node("DFT", inputs, ["y"], **attributes)
    if computed:
        assert_vjp(node, {"x": x, **integers}, wrt=["x"], dims=dims, opset=opset, check=False)
    else:
        assert_vjp(node, {"x": x}, constants=integers, dims=dims, opset=opset)


@pytest.mark.parametrize("dims", FORMS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("length", [None, 4, 6, 9])
@pytest.mark.parametrize("axis", [None, 1, -3])
def test_whole_transform(parts: int, inverse: int, length: int | None, axis: int | None, dims: str) -> None:
    dft(dims, parts=parts, inverse=inverse, length=length, axis=axis)


@pytest.mark.parametrize("dims", FORMS)
@pytest.mark.parametrize("length", [None, 4, 7, 8])
@pytest.mark.parametrize("axis", [None, 1])
def test_onesided_of_real_numbers(length: int | None, axis: int | None, dims: str) -> None:
    dft(dims, parts=1, onesided=1, length=length, axis=axis)


@pytest.mark.parametrize("dims", FORMS)
@pytest.mark.parametrize("length", [10, 11])
def test_onesided_inverse(length: int, dims: str) -> None:
    dft(dims, inverse=1, onesided=1, length=length, axis=1)


@pytest.mark.parametrize("inverse", [0, 1])
def test_computed_length_and_axis(inverse: int) -> None:
    dft("static", inverse=inverse, length=5, axis=1, computed=True)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("dims", FORMS)
def test_the_length_of_half_a_spectrum_is_twice_its_bins(dims: str, opset: int) -> None:
    """Without a length, 6 bins give 10 numbers; the reference evaluator fills them up to ONNX Runtime's answer."""
    dft(dims, inverse=1, onesided=1, axis=1, opset=opset)


@pytest.mark.parametrize("axis", [None, 1, 2])
def test_axis_as_an_attribute(axis: int | None) -> None:
    dft("static", axis=axis, length=5, opset=18)


@pytest.mark.parametrize("dims", FORMS)
@pytest.mark.parametrize(
    ("parts", "onesided", "windowed", "length"),
    [(1, 1, True, None), (1, 0, True, 8), (1, 1, False, 6), (1, 1, True, 8), (2, 0, True, None), (2, 0, False, 5)],
)
def test_stft(parts: int, onesided: int, windowed: bool, length: int | None, dims: str) -> None:
    signal = RNG.standard_normal((2, 20, parts))
    feeds: dict[str, Any] = {"x": signal}
    if windowed:
        feeds["window"] = RNG.standard_normal(length or 8)
    constants = {"step": np.asarray(3)}
    if length is not None:
        constants["length"] = np.asarray(length)
    inputs = ["x", "step", "window" if windowed else "", "length" if length else ""]
    assert_vjp(helper.make_node("STFT", inputs, ["y"], onesided=onesided), feeds, constants=constants, dims=dims)
