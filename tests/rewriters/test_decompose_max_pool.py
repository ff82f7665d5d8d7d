"""The Indices of a MaxPool, against those of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.rewriters.legalise import legalise_operators
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from tests.graph.reading import parsed
from tests.rewriters.check_pass import operators, run

POOL = """(float[2, 3, DIMS] x) => (float[2, 3, OUT] y, int64[2, 3, OUT] i) { y, i = MaxPool <ATTRIBUTES> (x) }"""


@pytest.mark.parametrize(
    ("dims", "out", "attributes"),
    [
        ("7", "3", "kernel_shape = [3], strides = [2]"),
        ("6, 5", "3, 3", "kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 0, 1]"),
        ("6, 5", "3, 3", "kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 0, 1], storage_order = 1"),
        ("7, 6", "3, 4", "kernel_shape = [2, 2], dilations = [4, 2]"),
        ("6, 5", "3, 3", 'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_UPPER"'),
        ("6, 5", "3, 3", 'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_LOWER"'),
        ("6, 6", "3, 3", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1"),
        ("4, 4, 3", "2, 2, 3", "kernel_shape = [2, 2, 1], strides = [2, 2, 1], storage_order = 1"),
    ],
)
def test_indices(dims: str, out: str, attributes: str) -> None:
    text = POOL.replace("DIMS", dims).replace("OUT", out).replace("ATTRIBUTES", attributes)
    model = parsed(text)
    shape = (2, 3, *map(int, dims.split(",")))
    for x in (np.random.default_rng(0).standard_normal(shape), np.zeros(shape), np.full(shape, -3e38)):  # with ties
        feeds: dict[str, Any] = {"x": x.astype(np.float32)}
        expected = run(ir.to_proto(model), feeds)
        legal = legalise_operators(model.clone(), "relax")
        assert "ArgMax" in operators(legal)
        onnx.checker.check_model(ir.to_proto(legal), full_check=True)
        for found, wanted in zip(run(ir.to_proto(legal), feeds), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_pool_whose_indices_nobody_reads_stays() -> None:
    text = "(float[1, 1, 4] x) => (float[1, 1, 2] y) { y = MaxPool <kernel_shape = [2], strides = [2]> (x) }"
    assert operators(legalise_operators(parsed(text), "relay")) == ["MaxPool"]


@pytest.mark.parametrize("build", [pytest.param(b, marks=getattr(pytest.mark, b)) for b in ("relay", "relax")])
def test_gradient_of_a_pool_compiles(build: str) -> None:
    text = """(float[1, 2, 6, 6] x) => (float[1, 2, 3, 3] y) {
        s = Sin (x)  p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0]> (s)  y = Exp (p)
    }"""
    gradient = cfad.vjp(parsed(text), wrt=["x"], outputs=["y"]).proto()
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (1, 2, 6, 6)), ("y_grad", (1, 2, 3, 3)))}
    results = compile_model(gradient, "llvm", feeds=feeds, options=Options(build=build)).run(feeds)
    np.testing.assert_allclose(results["x_grad"], Session(gradient).run(feeds)["x_grad"], rtol=1e-5, atol=1e-6)
