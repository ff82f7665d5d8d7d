"""Loops and Scans of the corpus: differentiated, checked against differences, and run everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.adjoint.agreement import assert_float32_follows, assert_levels_agree, assert_matches_differences, parameters
from tests.corpus import Maker
from tests.oracle import check_emitted, run_ort

GROUPS = ("loops", "carries", "captures", "tapes", "scans", "shapes")


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_gradient_matches_differences(maker: Maker) -> None:
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_optimisation_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_float32_follows(maker: Maker) -> None:
    assert_float32_follows(maker)


@pytest.mark.parametrize("plan", [{}, {"plan": "checkpointed", "segment": 2}, {"plan": "unrolled"}, {"memory": 1}])
@pytest.mark.parametrize("limit", ["4", "n"])
def test_condition_that_is_carried_and_stacked(limit: str, plan: dict[str, Any]) -> None:
    """The body returns its second input, and not as the condition alone."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    held (double[3] x, bool p, int64 n) => (double[3] y, bool last, bool[r] rows) <int64 m = {{4}}> {{
        y, last, rows = Loop ({limit if limit == "n" else "m"}, , x, p) <
            body = step (int64 i, bool go, double[3] h, bool b) => (bool go, double[3] next, bool go, bool go)
                {{ next = Sin (h) }}>
    }}"""
    if limit == "n" and plan.get("plan") == "unrolled":
        return
    emitted = cfad.vjp(onnx.parser.parse_model(text), wrt=["x"], **plan).proto()
    check_emitted(emitted)
    x = np.asarray([0.3, -0.7, 1.1])
    found = run_ort(emitted, {"x": x, "p": np.asarray(False), "n": np.asarray(4), "y_grad": np.ones(3)})
    assert found["last"]
    np.testing.assert_array_equal(found["rows"], np.ones(4, bool))
    slope, value = np.ones(3), x
    for _ in range(4):
        slope, value = slope * np.cos(value), np.sin(value)
    np.testing.assert_allclose(found["y"], value, rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], slope, rtol=1e-12)
