"""Operators with a body in their specification that a build of TVM lacks: the node tests of onnx are the oracle."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from onnx_cfad.model import load, normalise
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm.specified import LACKING, with_bodies
from tests.graph.reading import parsed
from tests.rewriters.check_pass import operators

NAMES = sorted({name for names in LACKING.values() for _, name in names})


@functools.cache
def node_tests() -> dict[str, list[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    found: dict[str, list[Any]] = {}
    for test in tests:
        if test.model is not None and len(test.model.graph.node) == 1:
            found.setdefault(test.model.graph.node[0].op_type, []).append(test)
    return found


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.parametrize("name", NAMES)
def test_body_computes_what_the_operator_does(name: str) -> None:
    kind = next(kind for kind, names in LACKING.items() if ("", name) in names)
    tests = node_tests()[name]
    for test in tests[:: max(len(tests) // 4, 1)]:
        model = with_bodies(normalise(load(test.model)), kind)
        assert name not in operators(model)
        inputs, expected = ([array(v) for v in values] for values in (test.data_sets or [([], [])])[0])
        reference = ReferenceEvaluator(ir.to_proto(model))
        feeds = dict(zip((v.name for v in test.model.graph.input), inputs, strict=True))
        for found, wanted in zip(map(array, reference.run(None, feeds)), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5, err_msg=test.name)


NORMALISED = """(float[2, 4, 3] x, float[4] scale, float[4] bias) => (float[2, 4, 3] y) {
    g = GroupNormalization <num_groups = 2> (x, scale, bias)  y = Swish (g)
}"""
LOSS = """(float[3, 5] x) => (float loss) <int64[3] labels = {1, 0, 4}> {
    c = Celu <alpha = 0.7> (x)  loss = SoftmaxCrossEntropyLoss (c, labels)
}"""


@pytest.mark.parametrize(
    ("build", "text"),
    [pytest.param("relay", NORMALISED, marks=pytest.mark.relay), pytest.param("relax", LOSS, marks=pytest.mark.relax)],
)
def test_model_compiles(build: str, text: str) -> None:
    model = parsed(text, opset=24) if "Swish" in text else parsed(text)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {
        v.name or "": rng.standard_normal([int(str(d)) for d in (v.shape or ())]).astype(np.float32)
        for v in model.graph.inputs
    }
    artifact = compile_model(model, "llvm", feeds=feeds, options=Options(build=build))
    assert max((artifact.manifest.errors or {"": 1.0}).values()) < 1e-5
