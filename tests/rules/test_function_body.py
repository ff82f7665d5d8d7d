"""Rules that go through the function body of an operator, against differences of the fused operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from onnx_cfad.numeric.differences import Outcome
from tests.oracle import assert_vjp, node_model, run_ort

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def heads(**more: Any) -> dict[str, Any]:
    """Queries, keys and values of 3 heads with 8 elements each."""
    return {"q": normal(2, 3, 4, 8), "k": normal(2, 3, 5, 8), "v": normal(2, 3, 5, 8), **more}


CASES: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "plain": (["q", "k", "v"], heads(), {}),
    "causal": (["q", "k", "v"], heads(), {"is_causal": 1}),
    "scaled": (["q", "k", "v"], heads(), {"scale": 0.2}),
    "softcap": (["q", "k", "v"], heads(), {"softcap": 2.0}),
    "bias": (["q", "k", "v", "bias"], heads(bias=normal(4, 5)), {}),
    "mask": (["q", "k", "v", "mask"], heads(mask=RNG.random((4, 5)) > 0.3), {}),
    "grouped": (["q", "k", "v"], {**heads(), "q": normal(2, 6, 4, 8)}, {}),
    "flat": (
        ["q", "k", "v"],
        {"q": normal(2, 4, 16), "k": normal(2, 5, 16), "v": normal(2, 5, 16)},
        {"q_num_heads": 2, "kv_num_heads": 2},
    ),
    "past": (
        ["q", "k", "v", "", "past_k", "past_v"],
        heads(past_k=normal(2, 3, 2, 8), past_v=normal(2, 3, 2, 8)),
        {},
    ),
}


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, dims: str) -> None:
    inputs, feeds, attributes = CASES[name]
    outputs = ["y", "present_k", "present_v"] if name == "past" else ["y"]
    node = helper.make_node("Attention", inputs, outputs, **attributes)
    assert_vjp(node, feeds, opset=23, dims=dims, step=3e-3, atol=2e-3)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_attention_of_each_opset(opset: int) -> None:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    assert_vjp(node, heads(), opset=opset, step=3e-3, atol=2e-3)


def test_attention_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    feeds = heads()
    tensors = [torch.tensor(a, requires_grad=True) for a in feeds.values()]
    y = torch.nn.functional.scaled_dot_product_attention(*tensors)
    seed = normal(*y.shape)
    y.backward(torch.tensor(seed))
    model = node_model(helper.make_node("Attention", list(feeds), ["y"]), feeds, opset=23)
    found = run_ort(cfad.vjp(model, wrt=list(feeds)).proto(), {**feeds, "y_grad": seed})
    for name, tensor in zip(feeds, tensors, strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], tensor.grad.numpy(), atol=2e-5)


@pytest.mark.parametrize("opset", [23, 24])
def test_a_row_that_is_masked_throughout_has_gradient_zero(opset: int) -> None:
    mask = np.ones((4, 5), bool)
    mask[1] = False
    feeds = heads(mask=mask)
    model = node_model(helper.make_node("Attention", list(feeds), ["y"]), feeds, opset=opset)
    emitted = cfad.vjp(model, wrt=["q", "k", "v"]).proto()
    found = run_ort(emitted, {**feeds, "y_grad": normal(2, 3, 4, 8)})
    assert not found["q_grad"][:, :, 1].any()
    assert all(np.isfinite(found[f"{name}_grad"]).all() and found[f"{name}_grad"].any() for name in "qkv")


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    x = normal(2, 3, 4, 8)
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], interleaved=interleaved)
    assert_vjp(node, {"x": x, "cos": normal(2, 4, 4), "sin": normal(2, 4, 4)}, opset=23)
    feeds = {"x": x, "cos": normal(10, 4), "sin": normal(10, 4), "at": np.asarray([[0, 1, 2, 3], [7, 5, 6, 4]])}
    node = helper.make_node("RotaryEmbedding", list(feeds), ["y"], interleaved=interleaved)
    assert_vjp(node, feeds, opset=23)


def test_causal_convolution_with_state() -> None:
    feeds = {"x": normal(2, 3, 6), "w": normal(3, 1, 4), "b": normal(3), "past": normal(2, 3, 3)}
    node = helper.make_node("CausalConvWithState", list(feeds), ["y", "present"])
    assert_vjp(node, feeds, opset=27)


def linear_attention() -> tuple[onnx.ModelProto, dict[str, Any]]:
    feeds = {name: normal(2, 6, 8) for name in "qkv"} | {"decay": -abs(normal(2, 6, 2)), "beta": normal(2, 6, 2)}
    inputs = ["q", "k", "v", "", "decay", "beta"]
    node = helper.make_node("LinearAttention", inputs, ["y", "state"], kv_num_heads=2, q_num_heads=2)
    return node_model(node, feeds, opset=27), feeds


@pytest.mark.parametrize("plan", ["taped", "checkpointed(segment=3)"])
def test_control_flow_in_a_body_is_planned_as_a_loop(plan: str) -> None:
    model, feeds = linear_attention()
    (path,) = cfad.plan(model)
    gradient = cfad.vjp(model, sites=[f"{path}={plan}"])
    found = cfad.validate(model, gradient, feeds, every_element_up_to=0)
    assert found.holds, str(found)
    assert all(row.verdict is Outcome.HOLDS and not row.is_zero for row in found.rows), str(found)


def test_body_in_a_branch_is_written_out_too() -> None:
    """The types that the body depends on are those of values from outside the branch."""
    model, feeds = linear_attention()
    (node,) = model.graph.node
    branches = [helper.make_graph([n], name, [], list(model.graph.output)) for name, n in (("t", node), ("e", node))]
    outputs = [o.name for o in model.graph.output]
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("If", ["up"], outputs, then_branch=branches[0], else_branch=branches[1]))
    model.graph.input.append(helper.make_tensor_value_info("up", onnx.TensorProto.BOOL, []))
    gradient = cfad.vjp(model, outputs=["y"], wrt=["q", "beta"])
    assert cfad.validate(model, gradient, {**feeds, "up": np.asarray(True)}, every_element_up_to=0).holds


def test_half_precision() -> None:
    feeds = {name: a.astype(np.float16) for name, a in heads().items()}
    assert_vjp(helper.make_node("Attention", list(feeds), ["y"]), feeds, opset=23)
