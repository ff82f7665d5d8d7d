"""The rules of GridSample and AffineGrid against central differences of the operators in ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model, run_ort

RNG = np.random.default_rng(0)
SHAPES = {1: ((5,), (4,)), 2: ((4, 5), (3, 2)), 3: ((3, 4, 2), (2, 2, 2))}


def sampled(rank: int, **attributes: Any) -> tuple[Any, dict[str, Any]]:
    """A GridSample node with a float64 input and a grid that reaches far beyond the borders."""
    spatial, points = SHAPES[rank]
    feeds = {"x": RNG.standard_normal((2, 3, *spatial)), "grid": RNG.uniform(-2.5, 2.5, (2, *points, rank))}
    return helper.make_node("GridSample", ["x", "grid"], ["y"], **attributes), feeds


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("rank", "mode"), [(2, "nearest"), (2, "linear"), (2, "cubic"), (3, "nearest"), (3, "linear")])
def test_grid_sample(rank: int, mode: str, padding_mode: str, align_corners: int, dims: str) -> None:
    node, feeds = sampled(rank, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    assert_vjp(node, feeds, dims=dims)


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_reflection_in_an_axis_of_one_element(mode: str, align_corners: int, dims: str) -> None:
    """With align_corners both borders are its centre: every point reads the element."""
    node, feeds = sampled(2, mode=mode, padding_mode="reflection", align_corners=align_corners)
    assert_vjp(node, {**feeds, "x": feeds["x"][:, :, :1]}, dims=dims)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_names_of_modes_before_opset_20(mode: str) -> None:
    node, feeds = sampled(2, mode=mode)
    narrow = {name: a.astype(np.float32) for name, a in feeds.items()}
    assert_vjp(node, narrow, opset=18, step=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("mode", "padding_mode", "align_corners"),
    [*itertools.product(["bilinear", "bicubic"], ["zeros", "border", "reflection"], [False, True])],
)
def test_agrees_with_torch(mode: str, padding_mode: str, align_corners: bool) -> None:
    torch = pytest.importorskip("torch")
    node, feeds = sampled(2, mode=mode.replace("bilinear", "linear").replace("bicubic", "cubic"),
                          padding_mode=padding_mode, align_corners=int(align_corners))  # fmt: skip
    x, grid = (torch.tensor(a, requires_grad=True) for a in feeds.values())
    y = torch.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)
    seed = RNG.standard_normal(tuple(y.shape))
    y.backward(torch.tensor(seed))
    found = run_ort(cfad.vjp(node_model(node, feeds), wrt=["x", "grid"]).proto(), {**feeds, "y_grad": seed})
    np.testing.assert_allclose(found["x_grad"], x.grad.numpy(), atol=1e-9)
    np.testing.assert_allclose(found["grid_grad"], grid.grad.numpy(), atol=1e-9)


def test_half_precision() -> None:
    feeds = {
        "x": RNG.standard_normal((1, 2, 3, 4)).astype(np.float16),
        "grid": RNG.uniform(-0.9, 0.9, (1, 2, 2, 2)).astype(np.float16),
    }
    assert_vjp(helper.make_node("GridSample", ["x", "grid"], ["y"]), feeds, wrt=["x"], step=0.5)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], align_corners: int, computed: bool) -> None:
    rank = len(size) - 2
    theta = RNG.standard_normal((2, rank, rank + 1))
    node = helper.make_node("AffineGrid", ["theta", "size"], ["y"], align_corners=align_corners)
    shape = np.asarray(size)
    if computed:
        assert_vjp(node, {"theta": theta, "size": shape}, wrt=["theta"], check=False)  # no rank of y is inferred
    else:
        assert_vjp(node, {"theta": theta}, constants={"size": shape})


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("samples", "points"), [(0, (2, 3)), (2, (0, 3)), (2, (2, 0)), (0, (0, 0))])
def test_nothing_sampled(samples: int, points: tuple[int, int], mode: str, dims: str) -> None:
    feeds = {"x": RNG.standard_normal((samples, 3, 4, 5)), "grid": RNG.uniform(-1, 1, (samples, *points, 2))}
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode)
    found = run_ort(cfad.vjp(node_model(node, feeds, dims=dims), wrt=["x", "grid"]).proto(),
                    {**feeds, "y_grad": np.ones((samples, 3, *points))})  # fmt: skip
    np.testing.assert_array_equal(found["x_grad"], np.zeros_like(feeds["x"]))
    assert found["grid_grad"].shape == feeds["grid"].shape


def test_affine_grid_of_a_batch_of_none() -> None:
    theta = np.zeros((0, 2, 3))
    node = helper.make_node("AffineGrid", ["theta", "size"], ["y"])
    model = node_model(node, {"theta": theta}, constants={"size": np.asarray([0, 1, 2, 3])}, dims="symbolic")
    found = run_ort(cfad.vjp(model).proto(), {"theta": theta, "y_grad": np.zeros((0, 2, 3, 2))})
    assert found["theta_grad"].shape == theta.shape
