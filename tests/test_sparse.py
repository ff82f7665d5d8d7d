"""Sparse initializers and constants: the same model with dense ones is the oracle, and ONNX Runtime for the primal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnx_cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.model import load
from tests.execution import run_in_onnxruntime

W = np.array([[0, 1.5, 0], [0, 0, -2], [0.5, 0, 0], [0, 0, 0]], np.float32)
FLAT = np.flatnonzero(W)
PLACES = {"flat": FLAT, "coordinates": np.stack(np.unravel_index(FLAT, W.shape), axis=1)}
NEST = """<ir_version: 8, opset_import: ["": 18]>
nest (float[2, 4] x, bool c) => (float[2, 3] y)
{
  y = If (c) <
    then_branch = t () => (float[2, 3] a) { p = MatMul (x, w)  a = Tanh (p) },
    else_branch = e () => (float[2, 3] b) { v = Constant <value = float[1] {0.0}> ()  q = MatMul (x, v)  b = Sin (q) }
  >
}"""


def sparse(indices: Any, name: str = "w", values: Any = None, dims: Any = W.shape) -> onnx.SparseTensorProto:
    numbers = W.reshape(-1)[FLAT] if values is None else np.asarray(values, np.float32)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(numbers, name), numpy_helper.from_array(np.asarray(indices, np.int64)), dims
    )


def nest(held: onnx.SparseTensorProto | None) -> onnx.ModelProto:
    """The weights of one branch are an initializer, those of the other a Constant in it; dense without ``held``."""
    model = onnx.parser.parse_model(NEST)
    branch = model.graph.node[0].attribute[1].g
    if held is None:
        model.graph.initializer.append(numpy_helper.from_array(W, "w"))
        attribute = helper.make_attribute("value", numpy_helper.from_array(W))
    else:
        model.graph.sparse_initializer.append(held)
        attribute = helper.make_attribute("sparse_value", held)
    branch.node[0].attribute[0].CopyFrom(attribute)
    return model


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("places", list(PLACES))
def test_gradients_are_those_of_dense_weights(places: str, taken: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    given = nest(sparse(PLACES[places]))
    before = given.SerializeToString()
    feeds = {"x": x, "c": np.asarray(taken), "y_grad": np.ones((2, 3), np.float32)}
    results = [run_in_onnxruntime(onnx_cfad.vjp(model, wrt=["x", "w"]).proto(), feeds) for model in (given, nest(None))]
    assert given.SerializeToString() == before
    assert list(results[0]) == ["y", "x_grad", "w_grad"]
    for name, expected in results[1].items():
        np.testing.assert_array_equal(results[0][name], expected)
    slope = 1 - np.tanh(x @ W) ** 2 if taken else np.cos(x @ W)
    np.testing.assert_allclose(results[0]["x_grad"], slope @ W.T, rtol=1e-5)


def test_onnx_runtime_reads_the_sparse_initializer_so() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> m (float[2, 4] x) => (float[2, 3] y) { y = MatMul (x, w) }'
    )
    model.graph.sparse_initializer.append(sparse(FLAT))
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)}
    expected = run_in_onnxruntime(model, feeds)["y"]
    results = run_in_onnxruntime(onnx_cfad.jvp(model).proto(), feeds | {"x_tangent": feeds["x"]})
    np.testing.assert_array_equal(results["y"], expected)


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (sparse([3, 3, 4]), "ascending"),
        (sparse([1, 2, 12]), "outside"),
        (sparse([-1, 2, 3]), "outside"),
        (sparse([[0, 1], [1, 9], [2, 0]]), "contradicts itself"),
        (sparse([1, 2]), r"3 values and indices of the shape \[2\]"),
        (sparse([1, 2, 3], dims=[2**20, 2**20]), "for which there is no room"),
        (sparse([1, 2, 3], dims=[-4, -3]), "for which there is no room"),
    ],
)
def test_contradictions_are_told(held: onnx.SparseTensorProto, found: str) -> None:
    with pytest.raises(ModelError, match=f"sparse initializer 'w'.*{found}"):
        load(nest(held))


def test_all_together_are_limited() -> None:
    model = nest(sparse([1, 2, 3], dims=[2**14, 2**13]))
    model.graph.sparse_initializer.append(sparse([1, 2, 3], "v", dims=[2**14, 2**13]))
    with pytest.raises(ModelError, match="no room.*1,024 MiB"):
        load(model)


def test_attribute_of_another_operator_is_refused_by_name() -> None:
    model = nest(None)
    model.graph.node[0].attribute.append(helper.make_attribute("weights", sparse(FLAT)))
    with pytest.raises(ModelError, match="If 'y' has a sparse attribute.*Make it dense"):
        load(model)
