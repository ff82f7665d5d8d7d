"""A tape in half the bytes gives the gradient to the digits that its element type has, and takes half the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from tests.adjoint.agreement import all_makers, seeds
from tests.oracle import check_emitted, run_ort

ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
NAMES = ("loop_static", "scan_one_state", "loop_captured_weight", "scan_captured_weight", "loop_in_loop")


@pytest.mark.parametrize("tape", ERROR)
@pytest.mark.parametrize("plan", [{}, {"plan": "checkpointed", "segment": 2}])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_keeps_the_digits_of_the_tape(name: str, plan: dict[str, Any], tape: str) -> None:
    example = all_makers()[name]("float")
    asked: dict[str, Any] = {"wrt": list(example.wrt), "outputs": example.outputs}
    feeds = {**example.feeds, **seeds(example)}
    narrow = cfad.vjp(example.model, tape=tape, **plan, **asked).proto()
    check_emitted(narrow)
    exact, found = run_ort(cfad.vjp(example.model, **asked).proto(), feeds), run_ort(narrow, feeds)
    for wrt in example.wrt:
        expected = exact[f"{wrt}_grad"]
        error = float(np.linalg.norm(found[f"{wrt}_grad"] - expected) / np.linalg.norm(expected))
        assert error <= 40 * ERROR[tape], f"{wrt}: relative error {error}"


def test_tape_is_narrow() -> None:
    example = all_makers()["scan_one_state"]("float")
    emitted = cfad.vjp(example.model, wrt=list(example.wrt), outputs=example.outputs, tape="float16").proto()
    types = {v.type.tensor_type.elem_type for v in emitted.graph.value_info if v.name.startswith("tape.")}
    assert types == {onnx.TensorProto.FLOAT16}


def test_unknown_tapes_are_refused() -> None:
    with pytest.raises(cfad.PlanError, match="expected float16 or bfloat16"):
        cfad.vjp(all_makers()["loop_static"]().model, tape="int8")
