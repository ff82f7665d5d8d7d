"""The derivative of an emitted gradient, by the inputs and by the seeds, against differences of that gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import onnx_cfad as cfad
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
    first = cfad.vjp(model, wrt=wrt, outputs=seeded).proto()
    primal = RUNNERS[runner](model, feeds)
    rng = np.random.default_rng(11)
    names = [i.name for i in first.graph.input if i.name not in feeds]
    seeds = {name: np.asarray(rng.standard_normal(primal[name[: -len("_grad")]].shape)) for name in names}
    del first.graph.output[:]
    for name in wrt:
        # Renamed: the gradient of the gradient by x is called x_grad as well.
        first.graph.node.append(helper.make_node("Identity", [f"{name}_grad"], [f"slope_{name}"], name=f"slope_{name}"))
        first.graph.output.append(helper.make_tensor_value_info(f"slope_{name}", DOUBLE, [None] * feeds[name].ndim))
    assert_vjp(
        first, {**feeds, **seeds}, wrt=[*wrt, *seeds], runner=runner, rtol=rtol, atol=atol, step=step, check=check
    )
