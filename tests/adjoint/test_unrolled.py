"""Unrolled loops give the gradients of taped ones, and what cannot be unrolled is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.regions import is_loop
from tests.adjoint.agreement import all_makers, seeds
from tests.oracle import check_emitted, run_ort


@pytest.mark.parametrize("name", sorted(set(all_makers()) - {"loop_long"}))
def test_agrees_with_the_full_tape(name: str) -> None:
    example = all_makers()[name]()
    asked: dict[str, Any] = {"wrt": list(example.wrt), "outputs": example.outputs}
    try:
        unrolled = cfad.vjp(example.model, plan="unrolled", **asked)
    except cfad.PlanError as error:
        assert "cannot be unrolled" in str(error)  # noqa: PT017 - most models have loops that only the run can count
        return
    assert "sequence" in name or not any(map(is_loop, unrolled.model.graph))
    check_emitted(unrolled.proto())
    feeds = {**example.feeds, **seeds(example)}
    expected = run_ort(cfad.vjp(example.model, plan="taped", **asked).proto(), feeds)
    found = run_ort(unrolled.proto(), feeds)
    for key, value in expected.items():
        if "random" not in name and not isinstance(value, list):
            np.testing.assert_allclose(found[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


def test_factor_leaves_a_shorter_loop() -> None:
    example = all_makers()["scan_one_state"]()
    path = next(iter(cfad.plan(example.model)))
    asked: dict[str, Any] = {"wrt": list(example.wrt), "outputs": example.outputs}
    with pytest.raises(cfad.PlanError, match="does not divide"):
        cfad.vjp(example.model, sites=[f"{path}=unrolled(factor=3)"], **asked)
    partly = cfad.vjp(example.model, sites=[f"{path}=unrolled(factor=2)"], **asked)
    assert any(map(is_loop, partly.model.graph))
    feeds = {**example.feeds, **seeds(example)}
    expected, found = run_ort(cfad.vjp(example.model, **asked).proto(), feeds), run_ort(partly.proto(), feeds)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-12, err_msg=key)
