"""Random nests of Loop, Scan and If against central differences, by a full tape and by checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from onnx_cfad.differentiate import differentiate
from onnx_cfad.model import load
from onnx_cfad.options import Options
from tests.adjoint.agreement import LEVELS, run, seeds
from tests.adjoint.random_programs import programs
from tests.corpus import Example
from tests.oracle import check_emitted, session

Array = np.ndarray[Any, Any]

BOUNDED = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
STEP = 1e-6


@BOUNDED
@given(programs(depth=1))
def test_shallow_nests_match_differences(model: Example) -> None:
    assert_matches(model, plan="taped")


@BOUNDED
@given(programs(depth=2))
def test_nests_match_differences(model: Example) -> None:
    assert_matches(model, plan="taped")


@BOUNDED
@given(programs(depth=2))
def test_nests_match_differences_from_checkpoints(model: Example) -> None:
    assert_matches(model, plan="checkpointed", segment=2)


@pytest.mark.slow
@settings(BOUNDED, max_examples=150)
@given(programs(depth=3))
def test_deep_nests_match_differences(model: Example) -> None:
    assert_matches(model, plan="taped")


@settings(BOUNDED, max_examples=30)
@given(programs(depth=2))
def test_optimisation_levels_agree_on_nests(model: Example) -> None:
    feeds, emitted = {**model.feeds, **accepted_seeds(model)}, differentiated(model, plan="taped")
    plain = run(emitted, feeds, LEVELS[0])
    for level in LEVELS[1:]:
        for name, value in run(emitted, feeds, level).items():
            np.testing.assert_allclose(value, plain[name], rtol=1e-10, atol=1e-12, err_msg=f"{name} at {level}")


def accepted_seeds(model: Example) -> dict[str, Array]:
    """Cotangents of the outputs.

    A model that ONNX Runtime itself refuses (a stack of no rows loses its dimensions), that ONNX's shape inference
    refuses (it takes a joined vector for a shape), or whose output has lost its rank that way is no example.
    """
    try:
        check_emitted(model.model)
        found = seeds(model)
    except (Fail, InvalidArgument, onnx.shape_inference.InferenceError):
        reject()
    ranks = {output.name: len(output.type.tensor_type.shape.dim) for output in model.model.graph.output}
    assume(all(value.ndim == ranks[name.removesuffix("_grad")] for name, value in found.items()))
    return found


def differentiated(model: Example, **plan: Any) -> onnx.ModelProto:
    """The emitted model under a plan."""
    options = dataclasses.replace(Options.of(list(model.wrt), model.outputs), **plan)
    return differentiate(load(model.model), options).proto()


def assert_matches(model: Example, **plan: Any) -> None:
    """The emitted model is valid, gives the primal outputs to rounding, and gradients that differences confirm.

    To rounding only: ONNX Runtime computes a sine by another routine where the buffer it writes to is not aligned.
    """
    cotangents = accepted_seeds(model)
    emitted = differentiated(model, **plan)
    check_emitted(emitted)
    primal, names = session(model.model), [output.name for output in model.model.graph.output]
    base = dict(zip(names, map(np.asarray, primal.run(names, model.feeds)), strict=True))
    found = run(emitted, {**model.feeds, **cotangents}, LEVELS[-1])
    for name, value in base.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-12, err_msg=name)
    generator = np.random.default_rng(3)
    for name in model.wrt:
        gradient = found[f"{name}_grad"]
        assert gradient.shape == model.feeds[name].shape
        for _ in range(3):
            direction = np.asarray(generator.standard_normal(gradient.shape))
            ends = [_value(primal, model.feeds, name, sign * STEP * direction, cotangents) for sign in (1, -1)]
            numeric, exact = (ends[0] - ends[1]) / (2 * STEP), float(np.sum(gradient * direction))
            scale = max(abs(numeric), float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
            assert abs(numeric - exact) <= 1e-6 + 1e-5 * scale, f"{name}: differences {numeric}, gradient {exact}"


def _value(primal: Any, feeds: dict[str, Array], name: str, offset: Array, cotangents: dict[str, Array]) -> float:
    """The seeded sum of the outputs with one input moved."""
    names = [seed.removesuffix("_grad") for seed in cotangents]
    results = primal.run(names, {**feeds, name: np.asarray(feeds[name] + offset)})
    return sum(float(np.sum(cotangents[f"{n}_grad"] * r)) for n, r in zip(names, results, strict=True))
