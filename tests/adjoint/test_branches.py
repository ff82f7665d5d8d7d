"""Branches of the corpus: differentiated, checked against differences, and run everywhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.adjoint.agreement import (
    assert_float32_follows,
    assert_levels_agree,
    assert_matches_differences,
    parameters,
    run,
)
from tests.corpus import Maker

GROUPS = ("branches",)


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_gradient_matches_differences(maker: Maker) -> None:
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_optimisation_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_float32_follows(maker: Maker) -> None:
    assert_float32_follows(maker)


def test_branch_that_returns_one_value_twice() -> None:
    """ONNX Runtime 1.32 gives garbage for such a branch; the emitted model must not have one."""
    text = """<ir_version: 10, opset_import: ["": 21]> twice (double[3] x, bool p) => (double[3] y, double[3] z) {
        y, z = If (p) <
            then_branch = left () => (double[3] a, double[3] a) { a = Sin (x) },
            else_branch = right () => (double[3] c, double[3] d) { d = Tanh (x)  c = Sin (d) }>
    }"""
    feeds = {"x": np.asarray([0.3, -0.7, 1.1]), "p": np.asarray(True)}
    seeds = {"y_grad": np.asarray([1.0, 2.0, -1.0]), "z_grad": np.asarray([0.5, -1.0, 2.0])}
    found = run(cfad.vjp(onnx.parser.parse_model(text), wrt=["x"]).proto(), {**feeds, **seeds}, "ORT_ENABLE_ALL")
    np.testing.assert_allclose(found["y"], np.sin(feeds["x"]), rtol=1e-12)
    np.testing.assert_allclose(found["z"], np.sin(feeds["x"]), rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], (seeds["y_grad"] + seeds["z_grad"]) * np.cos(feeds["x"]), rtol=1e-12)
