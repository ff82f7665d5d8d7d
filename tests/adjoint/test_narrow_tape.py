"""A tape in half the bytes gives the gradient to the digits that its element type has, and takes half the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
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
    with pytest.raises(cfad.PlanError, match="expected one of float16, bfloat16"):
        cfad.vjp(all_makers()["loop_static"]().model, tape="int8")


def checked(name: str, tape: str) -> cfad.Validation:
    """The validation of a gradient over a narrow tape."""
    example = all_makers()[name]("float")
    gradient = cfad.vjp(example.model, wrt=list(example.wrt), outputs=example.outputs, tape=tape, plan="taped")
    return cfad.validate(example.model, gradient, example.feeds)


@pytest.mark.parametrize("tape", ERROR)
def test_validate_prints_the_bound_and_the_cost_and_allows_for_it(tape: str) -> None:
    found = checked("scan_captured_weight", tape)
    assert found.holds
    assert found.tape is not None
    assert found.tape.unit == ERROR[tape]
    assert found.tape.error is not None
    assert 0 < found.tape.error <= found.tape.limit == 40 * ERROR[tape]
    assert f"tape: {tape}, a taped value is off by at most" in str(found)


def test_exact_tape_costs_nothing() -> None:
    assert checked("scan_captured_weight", "").tape is None


def overflowing() -> onnx.ModelProto:
    """The carry is squared until it is beyond the range of float16."""
    text = """<ir_version: 10, opset_import: ["": 21]> large (float[2] x) => (float[2] y)
        <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, float[2] h) => (bool again, float[2] next) {
            again = Identity (going)  next = Mul (h, h)
        }>
    }"""
    return onnx.parser.parse_model(text)


def test_tape_whose_range_does_not_suffice_is_found() -> None:
    feeds = {"x": np.asarray([20.0, 1.5], np.float32)}
    for tape, holds in (("float16", False), ("bfloat16", True)):
        found = cfad.validate(overflowing(), cfad.vjp(overflowing(), wrt=["x"], tape=tape, plan="taped"), feeds)
        assert found.tape is not None
        assert (found.tape.holds, found.holds) == (holds, holds)
    with pytest.raises(cfad.ValidationError):
        cfad.validate(overflowing(), cfad.vjp(overflowing(), tape="float16", plan="taped"), feeds).raise_if_failed()
