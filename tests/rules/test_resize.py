"""The rule of Resize against central differences of the operator in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model
from tests.rules.second_order import assert_second_order

RNG = np.random.default_rng(0)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
SIDES = ("static", "symbolic", "computed")


def check(
    shape: tuple[int, ...],
    dims: str = "static",
    *,
    scales: tuple[float, ...] | None = None,
    sizes: tuple[int, ...] | None = None,
    roi: tuple[float, ...] | None = None,
    **attributes: Any,
) -> None:
    """Asserts the gradient; "computed" means that roi, scales and sizes are graph inputs."""
    x = RNG.standard_normal(shape).astype(np.float32)
    given = {
        "roi": None if roi is None else np.asarray(roi, np.float32),
        "scales": None if scales is None else np.asarray(scales, np.float32),
        "sizes": None if sizes is None else np.asarray(sizes, np.int64),
    }
    present = {name: a for name, a in given.items() if a is not None}
    inputs = ["x", *(name if name in present else "" for name in given)]
    node = helper.make_node("Resize", inputs, ["y"], **attributes)
    if dims != "computed":
        assert_vjp(node, {"x": x}, constants=present, dims=dims, step=0.5, atol=1e-4)
        return
    feeds = {"x": x, **present}
    model = node_model(node, feeds, dims="symbolic")
    for value in model.graph.input[1:]:  # shape inference takes a list of unknown length for an empty one
        value.type.tensor_type.shape.dim[0].dim_value = len(present[value.name])
    assert_vjp(model, feeds, wrt=["x"], step=0.5, atol=1e-4)


def cropped(coordinates: str) -> dict[str, Any]:
    """The region that tf_crop_and_resize takes of axes 2 and 3, which reaches beyond the last."""
    return {"roi": (0.1, 0.2, 0.8, 1.3)} if coordinates == "tf_crop_and_resize" else {}


@pytest.mark.parametrize("dims", SIDES)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(rounding: str, coordinates: str, dims: str) -> None:
    options: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    options.update(mode="nearest", axes=[2, 3], extrapolation_value=1.5, **cropped(coordinates))
    check((2, 2, 4, 5), dims, scales=(2, 3), **options)
    check((2, 2, 4, 5), dims, scales=(1.6, 0.6), **options)


@pytest.mark.parametrize("dims", SIDES)
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(mode: str, coordinates: str, dims: str) -> None:
    options: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "mode": mode}
    options.update(axes=[2, 3], extrapolation_value=1.5, **cropped(coordinates))
    check((2, 2, 4, 5), dims, scales=(1.6, 0.6), **options)
    check((2, 2, 4, 5), dims, sizes=(7, 3), **options)


@pytest.mark.parametrize(("mode", "exclude"), [("linear", 0), ("cubic", 0), ("cubic", 1)])
def test_antialias_and_excluded_neighbours(mode: str, exclude: int) -> None:
    options: dict[str, Any] = {"mode": mode, "exclude_outside": exclude, "antialias": 1, "axes": [2, 3]}
    plain: dict[str, Any] = {**options, "antialias": 0}
    check((1, 2, 6, 5), scales=(0.5, 0.7), **options)
    check((1, 2, 6, 5), sizes=(3, 8), **options)
    check((1, 2, 6, 5), "symbolic", scales=(0.5, 1.4), **plain, cubic_coeff_a=-0.5)


@pytest.mark.parametrize(("policy", "sizes"), [("not_larger", (8, 20)), ("not_smaller", (8, 5))])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_aspect_ratio_policies(mode: str, policy: str, sizes: tuple[int, int]) -> None:
    options: dict[str, Any] = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    check((1, 2, 4, 5), sizes=sizes, **options)
    check((1, 2, 4, 5), "computed", sizes=(7, 6), **options)
    check((2, 2, 3, 5), "computed", sizes=(4, 9), **options)


@pytest.mark.parametrize("dims", SIDES)
def test_all_axes_counted(dims: str) -> None:
    check((2, 3, 4, 5), dims, scales=(1, 1, 2, 1.5), mode="linear")
    check((2, 3, 4, 5), dims, sizes=(2, 3, 8, 5), mode="cubic")
    check((2, 3, 4, 5), dims, scales=(1, 1, 2, 2), mode="nearest")
    check((2, 3, 4, 5), dims, scales=(1, 1, 1, 1), mode="linear")


@pytest.mark.parametrize("dims", SIDES)
def test_other_ranks(dims: str) -> None:
    check((7,), dims, scales=(1.7,), mode="nearest")
    check((3, 4), dims, scales=(2, 0.5), mode="linear")
    check((2, 3, 4), dims, scales=(1, 2, 0.5), mode="nearest")
    check((1, 2, 3, 4, 3), dims, scales=(1, 1, 2, 1.5, 0.7), mode="linear")
    check((2, 3, 2, 4, 3), dims, scales=(2, 1, 2, 1, 3), mode="nearest")
    check((2, 4, 5, 3), dims, scales=(1, 1.5, 2, 1), mode="linear")  # channels last


def test_negative_axes() -> None:
    check((1, 2, 4, 5), scales=(1.5, 0.6), mode="linear", axes=[-1, -2])


def test_half_precision() -> None:
    x = RNG.standard_normal((1, 2, 4, 5)).astype(np.float16)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    assert_vjp(node, {"x": x}, constants={"scales": np.asarray([1, 1, 2, 1.5], np.float32)}, step=0.5)


def test_whole_factors_sum_blocks_without_a_product() -> None:
    x = RNG.standard_normal((1, 2, 4, 5)).astype(np.float32)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    model = node_model(node, {"x": x}, constants={"scales": np.asarray([1, 1, 2, 3], np.float32)})
    kinds = [n.op_type for n in cfad.vjp(model, wrt=["x"]).proto().graph.node]
    assert "MatMul" not in kinds
    assert kinds.count("ReduceSum") == 1


MOVING = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")


@pytest.mark.parametrize("coordinates", MOVING)
@pytest.mark.parametrize(
    ("mode", "exclude", "antialias"),
    [("linear", 0, 0), ("linear", 0, 1), ("linear", 1, 1), ("cubic", 0, 0), ("cubic", 1, 0), ("cubic", 0, 1)],
)
def test_by_scales(mode: str, exclude: int, antialias: int, coordinates: str) -> None:
    """The differences do not change the size of the result: 7 * 1.67 = 11.69, 9 * 0.62 = 5.58."""
    feeds = {
        "x": RNG.standard_normal((2, 1, 7, 9)).astype(np.float32),
        "scales": np.asarray([1.67, 0.62], np.float32),
    }
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode=mode, exclude_outside=exclude, antialias=antialias,
        coordinate_transformation_mode=coordinates, axes=[2, -1],
    )  # fmt: skip
    assert_vjp(node, feeds, wrt=["scales", "x"], step=1e-3, atol=3e-2)


@pytest.mark.parametrize("given", ["scales", "sizes", "not_larger"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_by_region(mode: str, given: str) -> None:
    """Of one axis the region reaches beyond the last element, where the result is extrapolated."""
    feeds = {
        "x": RNG.standard_normal((2, 1, 7, 9)).astype(np.float32),
        "roi": np.asarray([0.16, 0.21, 0.87, 1.17], np.float32),
    }
    how = np.asarray([1.67, 0.62], np.float32) if given == "scales" else np.asarray([5, 8], np.int64)
    inputs = ["x", "roi", "scales"] if given == "scales" else ["x", "roi", "", "sizes"]
    policy = {"keep_aspect_ratio_policy": given} if given == "not_larger" else {}
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 2.5}
    node = helper.make_node("Resize", inputs, ["y"], mode=mode, axes=[2, 3], **crop, **policy)
    assert_vjp(node, feeds, wrt=["roi", "x"], constants={inputs[-1]: how}, step=2e-3, atol=6e-2)


def test_a_result_of_one_element_reads_the_middle_of_the_region() -> None:
    feeds = {"x": RNG.standard_normal((7, 3)).astype(np.float32), "roi": np.asarray([0.13, 0.6], np.float32)}
    node = helper.make_node(
        "Resize", ["x", "roi", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
        axes=[0],
    )  # fmt: skip
    assert_vjp(node, feeds, wrt=["roi"], constants={"sizes": np.asarray([1])}, step=1e-3, atol=1e-2)


@pytest.mark.parametrize("attributes", [{"mode": "nearest"}, {"coordinate_transformation_mode": "align_corners"}])
def test_scales_that_decide_sizes_only_have_the_derivative_zero(attributes: dict[str, Any]) -> None:
    feeds = {
        "x": RNG.standard_normal((4, 5)).astype(np.float32),
        "scales": np.asarray([1.65, 0.66], np.float32),
    }
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **{"mode": "linear", **attributes})
    assert_vjp(node, feeds, wrt=["scales"], step=1e-3)


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("how", ["init", "node"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_empty_operands_are_absent(mode: str, how: str, opset: int) -> None:
    """A region and factors of no elements in front of sizes, as paddle2onnx writes them, and such a region alone."""
    x = RNG.standard_normal((1, 2, 4, 5)).astype(np.float32)
    empty, whole = np.zeros(0, np.float32), np.asarray([1, 2, 7, 3])
    for constants in (
        {"roi": empty, "scales": empty, "sizes": whole},
        {"roi": empty, "scales": (whole / x.shape).astype(np.float32)},
    ):
        nodes = [helper.make_node("Resize", ["x", *constants], ["y"], mode=mode)]
        tensors = [numpy_helper.from_array(a, name) for name, a in constants.items()]
        if how == "node":
            nodes = [*(helper.make_node("Constant", [], [t.name], value=t) for t in tensors), *nodes]
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, whole.tolist())
        graph = helper.make_graph(nodes, "g", [source], [result], tensors if how == "init" else [])
        imports = [helper.make_opsetid("", opset)]
        assert_vjp(helper.make_model(graph, opset_imports=imports, ir_version=8), {"x": x}, step=0.5, atol=1e-4)


@pytest.mark.parametrize(("mode", "coordinates"), [("linear", "half_pixel"), ("cubic", "half_pixel_symmetric")])
def test_second_order_by_scales(mode: str, coordinates: str) -> None:
    feeds = {
        "x": RNG.standard_normal((7, 9)).astype(np.float32),
        "scales": np.asarray([1.67, 0.62], np.float32),
    }
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    types = {"y": TensorProto.FLOAT}
    assert_second_order(node, feeds, wrt=["x", "scales"], outputs=types, step=1e-3, rtol=5e-3, atol=5e-2)
