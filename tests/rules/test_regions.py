"""The rules of RoiAlign (in float64) and MaxRoiPool against central differences in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model, run_ort
from tests.rules.second_order import assert_second_order

RNG = np.random.default_rng(0)
ROIS = np.asarray([[0.0, 0, 3, 3], [1, 1, 6, 7], [2.5, 2.2, 10, 9], [-2.9, -2, 2, 2], [4, 3, 4.2, 3.1]])
OWNERS = np.asarray([0, 1, 1, 0, 1])


def align(**attributes: Any) -> tuple[Any, dict[str, Any]]:
    feeds = {"x": RNG.standard_normal((2, 3, 8, 7)), "rois": ROIS, "owners": OWNERS}
    return helper.make_node("RoiAlign", list(feeds), ["y"], **attributes), feeds


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_averages(scale: float, ratio: int, coordinates: str, dims: str) -> None:
    node, feeds = align(
        output_height=2,
        output_width=3,
        sampling_ratio=ratio,
        spatial_scale=scale,
        coordinate_transformation_mode=coordinates,
    )
    assert_vjp(node, feeds, wrt=["x"], dims=dims)


JITTER = np.asarray(RNG.uniform(0.05, 0.15, ROIS.shape))  # no sample lies on an element, where there is a kink


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("ratio", "scale", "dims"), [(0, 1.0, "static"), (2, 0.6, "symbolic"), (3, 1.0, "static")])
def test_regions_and_maxima(ratio: int, scale: float, dims: str, coordinates: str, mode: str) -> None:
    node, feeds = align(
        output_height=2, output_width=3, sampling_ratio=ratio, spatial_scale=scale, mode=mode,
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    # With ratio 0 the number of samples jumps where a region's size by the bins is whole: 0.05 of an element away.
    assert_vjp(node, {**feeds, "rois": ROIS + JITTER}, wrt=["x", "rois"], dims=dims)


def test_second_derivative_by_regions() -> None:
    node, feeds = align(output_height=2, output_width=2, sampling_ratio=2)
    feeds = {**feeds, "rois": ROIS + JITTER}
    assert_second_order(node, feeds, wrt=["x", "rois"])


def test_regions_may_be_held() -> None:
    _, feeds = align()
    shifted = node_model(
        [
            helper.make_node("Mul", ["rois", "s"], ["boxes"]),
            helper.make_node("RoiAlign", ["x", "boxes", "owners"], ["z"]),
        ]
        + [helper.make_node("Mul", ["z", "s"], ["y"])],
        {**feeds, "s": np.asarray(0.5)},
    )
    fixed = cfad.vjp(shifted, wrt=["s"], stop_gradient=["boxes"]).proto()
    given = {**feeds, "s": np.asarray(0.5), "y_grad": RNG.standard_normal((5, 3, 1, 1))}
    found = run_ort(fixed, given)
    np.testing.assert_allclose(found["s_grad"], np.sum(given["y_grad"] * found["y"]) / 0.5)


def test_half_precision() -> None:
    node, feeds = align(output_height=2, output_width=2, sampling_ratio=2)
    half = {name: a.astype(np.float16) if a.dtype.kind == "f" else a for name, a in feeds.items()}
    assert_vjp(node, half, wrt=["x"], step=0.5)


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize(("pooled", "scale"), [((2, 3), 1.0), ((1, 1), 1.0), ((3, 2), 0.5)])
def test_max_roi_pool(pooled: tuple[int, int], scale: float, dims: str) -> None:
    rois = np.concatenate([OWNERS[:, None], ROIS], 1).astype(np.float32)
    x = (RNG.permutation(2 * 3 * 8 * 7).reshape(2, 3, 8, 7) * 0.05).astype(np.float32)
    node = helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=pooled, spatial_scale=scale)
    assert_vjp(node, {"x": x, "rois": rois}, wrt=["x"], dims=dims)


def test_a_tie_goes_to_the_first_in_rows() -> None:
    x = np.zeros((1, 1, 3, 3), np.float32)
    x[0, 0, 1, 2] = x[0, 0, 2, 0] = 5
    feeds = {"x": x, "rois": np.asarray([[0, 0, 0, 2, 2]], np.float32)}
    node = helper.make_node("MaxRoiPool", list(feeds), ["y"], pooled_shape=[1, 1])
    model = cfad.vjp(node_model(node, feeds), wrt=["x"]).proto()
    found = run_ort(model, {**feeds, "y_grad": np.ones((1, 1, 1, 1), np.float32)})["x_grad"]
    assert found[0, 0, 1, 2] == found.sum() == 1
