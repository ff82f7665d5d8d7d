"""The derivative of an emitted gradient, by the inputs and by the seeds, against differences of that gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import onnx_cfad as cfad
from tests.modes import MODE
from tests.oracle import DOUBLE, RUNNERS, Array, assert_vjp, node_model


def assert_second_order(
    node: onnx.NodeProto | Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    *,
    wrt: Sequence[str],
    outputs: Mapping[str, int] | None = None,
    seeded: Sequence[str] | None = None,
    runner: str = "ort",
    rtol: float = 1e-5,
    atol: float = 1e-6,
    step: float | None = None,
    check: bool = True,
    **build: Any,
) -> None:
    """Asserts that a gradient's gradient equals central differences of the gradient, in float64.

    Args:
        node: One or more nodes.
        feeds: Inputs.
        wrt: Inputs to differentiate by, twice.
        outputs: Names and element types of the outputs.
        seeded: Outputs to differentiate; default: all.
        runner: "ort" or "reference".
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        step: Of the differences.
        check: Also check the emitted model's validity.
        build: For ``node_model``.
    """
    model = node_model(node, feeds, outputs=outputs or {"y": DOUBLE}, **build)
    first, seeds = first_order(model, RUNNERS[runner](model, feeds), feeds, wrt, seeded)
    assert_vjp(
        first, {**feeds, **seeds}, wrt=[*wrt, *seeds], runner=runner, rtol=rtol, atol=atol, step=step, check=check
    )


def first_order(
    model: onnx.ModelProto,
    primal: Mapping[str, Array],
    feeds: Mapping[str, Array],
    wrt: Sequence[str],
    seeded: Sequence[str] | None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The first derivative of ``model`` as a model of its own, and random seeds for it.

    It is the gradient, or the tangents for reverse over forward. Outputs are called slope_<name>: the gradient of the
    gradient by x is called x_grad as well.

    Args:
        model: The model.
        primal: Its outputs.
        feeds: Its inputs.
        wrt: Names to differentiate by.
        seeded: Outputs to differentiate.
    """
    forward = MODE.get() == "reverse-over-forward"
    gradient = (cfad.jvp if forward else cfad.vjp)(model, wrt=wrt, outputs=seeded)
    inputs = gradient.report.tangents if forward else gradient.report.seeds
    results = gradient.report.pushed if forward else gradient.report.gradients
    first, rng = gradient.proto(), np.random.default_rng(11)
    like = {**primal, **feeds} if forward else primal
    seeds = {given: rng.standard_normal(like[name].shape).astype(like[name].dtype) for name, given in inputs.items()}
    elements = {output.name: output.type.tensor_type.elem_type for output in first.graph.output}
    del first.graph.output[:]
    for name, given in results.items():
        first.graph.node.append(helper.make_node("Identity", [given], [f"slope_{name}"], name=f"slope_{name}"))
        rank = (primal if forward else feeds)[name].ndim
        first.graph.output.append(helper.make_tensor_value_info(f"slope_{name}", elements[given], [None] * rank))
    return first, seeds
