"""Products of operands of random shapes that stretch each other. Linear in each operand, which is the oracle."""

from __future__ import annotations

import hypothesis
import hypothesis.extra.numpy as shapes
import numpy as np
from hypothesis import strategies
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import node_model, run_ort

FEW = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)


def assert_adjoint(op_type: str, a: tuple[int, ...], b: tuple[int, ...], dims: str) -> None:
    """Asserts <ct, f(da, b)> = <a_grad, da> and the same for b, for f linear in each operand."""
    rng = np.random.default_rng(3)
    feeds = {"a": np.asarray(rng.standard_normal(a)), "b": np.asarray(rng.standard_normal(b))}
    model = node_model(helper.make_node(op_type, ["a", "b"], ["y"]), feeds, dims=dims)
    emitted = cfad.vjp(model, wrt=["a", "b"]).proto()
    ct = np.asarray(rng.standard_normal(run_ort(model, feeds)["y"].shape))
    found = run_ort(emitted, {**feeds, "y_grad": ct})
    for name in ("a", "b"):
        step = np.asarray(rng.standard_normal(feeds[name].shape))
        moved = run_ort(model, {**feeds, name: step})["y"]
        assert found[f"{name}_grad"].shape == step.shape
        np.testing.assert_allclose(np.sum(found[f"{name}_grad"] * step), np.sum(ct * moved), rtol=1e-9, atol=1e-9)


@FEW
@hypothesis.given(
    shapes.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3, min_side=0),
    strategies.sampled_from(["static", "symbolic"]),
)
def test_elementwise_product(found: shapes.BroadcastableShapes, dims: str) -> None:
    a, b = found.input_shapes
    assert_adjoint("Mul", a, b, dims)


@FEW
@hypothesis.given(
    shapes.mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2, max_side=3),
    strategies.sampled_from(["static", "symbolic"]),
)
def test_matrix_product(found: shapes.BroadcastableShapes, dims: str) -> None:
    a, b = found.input_shapes
    assert_adjoint("MatMul", a, b, dims)
