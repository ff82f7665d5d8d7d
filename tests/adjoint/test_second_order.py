"""What the tool emits, it differentiates: gradients of gradients, against differences of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from tests.adjoint.agreement import parameters, promoted, seeds
from tests.corpus import CORPUS, Example, Maker
from tests.oracle import assert_vjp

GROUPS = [group for group in CORPUS if group != "precision"]
# Thousands of iterations give differences no digits.
WITHOUT_DIFFERENCES = frozenset(("loop_long",))
# No row of a symbolic length was ever stacked: ONNX Runtime gives it 0 columns, and shares buffers as if it had more.
RUNTIME_FAULT = frozenset(("loop_scan_output_zero_trips_symbolic_and_summed",))


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_gradient_of_the_gradient_matches_differences(maker: Maker) -> None:
    """By the inputs and by the seeds: the Hessian and the Jacobian."""
    if maker.__name__ in WITHOUT_DIFFERENCES:
        pytest.skip("differences of its gradient have no digits")
    if maker.__name__ in RUNTIME_FAULT:
        pytest.skip("ONNX Runtime 1.32 shares buffers of an empty stack wrongly")
    example = maker()
    model, feeds = promoted(example)
    model, feeds, gradients = gradient_model(example._replace(model=model, feeds=feeds))
    wrt = [
        name for name, array in feeds.items() if array.dtype == np.float64 and name in {*example.wrt, *_seeds(feeds)}
    ]
    assert_vjp(model, feeds, wrt=wrt, outputs=gradients, rtol=1e-5)


def gradient_model(example: Example) -> tuple[onnx.ModelProto, dict[str, Any], list[str]]:
    """The differentiated model with ``<output>_seed`` and ``<name>_first`` for the names that a second pass gives."""
    model = cfad.vjp(example.model, wrt=list(example.wrt), outputs=example.outputs).model
    cotangents = seeds(example)
    feeds = dict(example.feeds)
    for value in model.graph.inputs:
        name = value.name or ""
        if name in cotangents:
            value.name = name.removesuffix("_grad") + "_seed"
            feeds[value.name] = cotangents[name]
    gradients: list[str] = []
    for value in model.graph.outputs[-len(example.wrt) :]:
        value.name = (value.name or "").removesuffix("_grad") + "_first"
        gradients.append(value.name)
    return ir.to_proto(model), feeds, gradients


def _seeds(feeds: dict[str, Any]) -> set[str]:
    return {name for name in feeds if name.endswith("_seed")}
