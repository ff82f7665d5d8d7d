"""The rules of convolutions against central differences of the operators in ONNX Runtime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from onnx_cfad.rules import correlation
from tests.oracle import FLOAT, assert_vjp, node_model, run_ort, run_reference
from tests.rules.forms import Case, case, check, each_form

RNG = np.random.default_rng(0)
SIDES = ("static", "symbolic")


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def conv(
    name: str, x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = False, op: str = "Conv", **attributes: Any
) -> Case:
    channels = w[0] if op == "Conv" else w[1] * attributes.get("group", 1)
    inputs = {"x": normal(*x), "w": normal(*w), "b": normal(channels) if bias else None}
    return case(name, op, inputs, outputs={"y": FLOAT}, forms=SIDES, **attributes)


def transposed(name: str, x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Case:
    return conv(name, x, w, op="ConvTranspose", **attributes)


CONV = [
    conv("1d", (2, 3, 8), (4, 3, 3), bias=True),
    conv("1d_strided", (2, 3, 9), (4, 3, 2), strides=[3], pads=[1, 0]),
    conv("1d_leftover", (1, 2, 11), (2, 2, 2), strides=[4], bias=True),
    conv("1d_leftover_dilated", (1, 2, 11), (2, 2, 2), strides=[4], dilations=[2]),
    conv("1d_dilated", (2, 2, 9), (3, 2, 3), dilations=[2], pads=[2, 2]),
    conv("1d_pointwise", (2, 3, 5), (4, 3, 1)),
    conv("1d_all_padding_unused", (1, 1, 4), (1, 1, 2), strides=[3], pads=[1, 1]),
    conv("2d", (2, 3, 5, 6), (4, 3, 3, 2), pads=[1, 1, 1, 1], bias=True),
    conv("2d_kernel_shape", (1, 2, 5, 5), (2, 2, 3, 3), kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0]),
    conv("2d_mixed", (1, 2, 7, 9), (3, 2, 2, 3), strides=[2, 3], dilations=[3, 1], pads=[1, 0, 2, 1]),
    conv("2d_grouped", (2, 6, 5, 4), (4, 3, 2, 2), group=2, strides=[2, 1], bias=True),
    conv("2d_depthwise", (2, 3, 6, 5), (6, 1, 3, 3), group=3, pads=[1, 1, 1, 1], strides=[2, 2]),
    conv("2d_pointwise_strided", (2, 3, 6, 5), (2, 3, 1, 1), strides=[2, 2]),
    conv("3d", (1, 2, 4, 5, 4), (2, 2, 2, 3, 2), strides=[1, 2, 2], pads=[0, 1, 0, 1, 1, 0]),
    conv("3d_grouped", (1, 4, 3, 4, 3), (2, 2, 2, 2, 2), group=2),
    *(
        conv(f"{mode}_{side}_{k}_{s}_{d}".lower(), (1, 2, side), (2, 2, k), auto_pad=mode, strides=[s], dilations=[d])
        for mode, side, (k, s, d) in itertools.product(
            ("SAME_UPPER", "SAME_LOWER", "VALID"), (7, 8), ((3, 1, 1), (2, 2, 1), (3, 2, 2), (1, 3, 1), (4, 3, 1))
        )
        if d == 1 or mode == "VALID"  # ONNX Runtime refuses SAME with dilations
    ),
    conv("taps_1d", (2, 16, 70), (17, 16, 3), pads=[1, 1]),
    conv("taps_2d", (2, 16, 11, 23), (16, 16, 2, 3), strides=[1, 2], dilations=[2, 1], pads=[1, 0, 0, 2]),
    conv("taps_2d_leftover", (1, 16, 29, 20), (16, 16, 2, 2), strides=[3, 2]),
    conv("taps_grouped", (2, 32, 9, 9), (34, 16, 2, 2), group=2),
    conv("taps_depthwise", (2, 3, 9, 10), (6, 1, 2, 3), group=3, pads=[0, 1, 1, 0]),
    conv("taps_3d", (1, 16, 5, 5, 5), (16, 16, 2, 1, 2)),
    conv("taps_same", (1, 16, 17, 18), (16, 16, 3, 2), auto_pad="SAME_UPPER", strides=[2, 1]),
    conv("2d_same", (1, 2, 5, 6), (2, 2, 3, 2), auto_pad="SAME_LOWER", strides=[2, 1]),
]

TRANSPOSED = [
    transposed("1d", (2, 3, 5), (3, 4, 3), bias=True),
    transposed("1d_strided", (2, 3, 4), (3, 2, 3), strides=[2], pads=[1, 0], output_padding=[1], bias=True),
    transposed("1d_dilated", (2, 2, 4), (2, 3, 3), dilations=[2], strides=[3], pads=[2, 1], output_padding=[2]),
    transposed("1d_output_shape", (1, 2, 4), (2, 2, 3), strides=[2], output_shape=[8]),
    transposed("1d_output_shape_odd", (1, 2, 4), (2, 2, 4), strides=[2], output_shape=[7]),
    transposed("1d_output_shape_upper", (1, 2, 4), (2, 2, 4), strides=[2], output_shape=[7], auto_pad="SAME_UPPER"),
    transposed("2d_same_upper", (1, 2, 3, 4), (2, 2, 4, 3), strides=[2, 3], auto_pad="SAME_UPPER"),
    transposed("2d_same_lower", (1, 2, 3, 4), (2, 2, 4, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    transposed("2d_grouped", (2, 4, 3, 3), (4, 3, 2, 3), group=2, strides=[2, 2], bias=True),
    transposed("2d_depthwise", (2, 3, 3, 4), (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1]),
    transposed("2d_valid", (1, 2, 3, 3), (2, 2, 2, 2), auto_pad="VALID"),
    transposed("taps", (1, 16, 9, 8), (16, 17, 2, 3), strides=[2, 1], pads=[1, 0, 0, 1], output_padding=[1, 0]),
    transposed("taps_grouped", (1, 32, 9, 8), (32, 16, 2, 2), group=2, strides=[2, 2]),
    transposed("3d", (1, 2, 2, 3, 2), (2, 2, 2, 2, 3), strides=[2, 1, 2], pads=[0, 1, 1, 0, 0, 1]),
]


@each_form(CONV)
def test_conv(case: Case, form: str) -> None:
    check(case, form)


@each_form(TRANSPOSED)
def test_conv_transpose(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("case", [*CONV[:3], *CONV[7:13]], ids=lambda case: case.name)
def test_conv_in_float64(case: Case) -> None:
    feeds = {name: array.astype(np.float64) for name, array in case.floats.items()}
    assert_vjp(case.node, feeds, runner="reference")


def test_static_shapes_need_one_node_a_cotangent() -> None:
    emitted = cfad.vjp(
        node_model(
            helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4),
            {"x": normal(1, 2, 6, 6), "w": normal(3, 2, 3, 3)},
        ),
        wrt=["x", "w"],
    ).proto()
    kinds = [node.op_type for node in emitted.graph.node]
    assert sorted(kind for kind in kinds if "Conv" in kind) == ["Conv", "Conv", "ConvTranspose"]
    assert set(kinds) <= {"Conv", "ConvTranspose", "Transpose", "Reshape", "Identity"}


@each_form([case for case in (*CONV, *TRANSPOSED) if "taps" in case.name or case.name.startswith("2d")])
def test_forms_for_taps_with_gaps(case: Case, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products tap by tap with many channels, one Conv over the batch with few."""
    monkeypatch.setattr(correlation, "applies", lambda *_: False)
    check(case, form)


def test_gradient_by_a_kernel_is_one_conv_between_five_nodes_that_move_data() -> None:
    feeds = {"x": normal(2, 16, 9, 9), "w": normal(16, 16, 3, 3)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    graph = cfad.vjp(node_model(node, feeds), wrt=["w"]).proto().graph
    assert sorted(n.op_type for n in graph.node[1:]) == ["Conv", *["Reshape"] * 2, *["Transpose"] * 3]


def test_products_of_taps_with_gaps_need_ten_nodes() -> None:
    feeds = {"x": normal(2, 16, 32, 32), "w": normal(16, 16, 3, 3)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[2] * 4, dilations=[2, 2])
    graph = cfad.vjp(node_model(node, feeds), wrt=["w"]).proto().graph
    outside = [n.op_type for n in graph.node if n.op_type != "Conv"]
    assert sorted(outside) == ["Pad", "Reshape", "Reshape", "Scan", "Transpose", "Transpose", "Transpose"]
    (taps,) = [n for n in graph.node if n.op_type == "Scan"]
    (body,) = [a.g for a in taps.attribute if a.name == "body"]
    assert [n.op_type for n in body.node] == ["Slice", "Reshape", "MatMul"]


def _with_open_dimensions(model: onnx.ModelProto, axes: Sequence[int]) -> onnx.ModelProto:
    """``model`` with names for dimensions of x."""
    for axis in axes:
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"x_{axis}"
    return model


@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 0, 1, 2]}, {"auto_pad": "SAME_LOWER"}, {"strides": [2, 3]}], ids=str
)
@pytest.mark.parametrize("axes", [[0], [2], [3], [0, 2], [0, 3], [2, 3], [0, 2, 3]], ids=str)
def test_known_channels_and_open_sizes(axes: list[int], attributes: dict[str, Any]) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    feeds = {"x": normal(2, 3, 6, 7), "w": normal(4, 3, 3, 2)}
    assert_vjp(_with_open_dimensions(node_model(node, feeds), axes), feeds)


@pytest.mark.parametrize("axes", [[0], [0, 2, 3]], ids=str)
def test_empty_batch_has_a_gradient_of_zeros(axes: list[int]) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    feeds = {"x": normal(3, 4, 12, 12), "w": normal(5, 4, 3, 3)}
    emitted = cfad.vjp(_with_open_dimensions(node_model(node, feeds), axes), wrt=["w"]).proto()
    found = run_ort(emitted, {**feeds, "x": feeds["x"][:0], "y_grad": normal(0, 5, 12, 12)})["w_grad"]
    np.testing.assert_array_equal(found, np.zeros_like(feeds["w"]))


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [2, 4])
def test_empty_batch_in_groups_of_channels_that_the_run_knows(group: int, op_type: str) -> None:
    x = np.zeros((0, 4, 5, 6), np.float32)
    w = np.ones((4, 4 // group, 2, 3), np.float32)
    model = node_model(helper.make_node(op_type, ["x", "w"], ["y"], group=group), {"x": x, "w": w}, dims="symbolic")
    seed = np.zeros(run_ort(model, {"x": x, "w": w})["y"].shape, np.float32)
    found = run_ort(cfad.vjp(model, wrt=["x", "w"]).proto(), {"x": x, "w": w, "y_grad": seed})
    assert found["x_grad"].shape == x.shape
    np.testing.assert_array_equal(found["w_grad"], np.zeros_like(w))


@pytest.mark.parametrize("kernel", [3, 1])
def test_gradients_by_kernels_of_half_precision_are_summed_in_float32(kernel: int) -> None:
    """The signal has fewer elements than the cotangent, so that it alone would be summed exactly in 16 bits."""
    x = np.full((1, 16, 12, 12), 1.0, np.float16)
    seed = np.full((1, 64, 12, 12), 2.0**-11 + 2.0**-9, np.float16)
    seed[:, :, 0, 0] = 16
    pads = [kernel // 2] * 4
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=pads)
    w = np.zeros((64, 16, kernel, kernel), np.float16)
    emitted = cfad.vjp(node_model(node, {"x": x, "w": w}), wrt=["w"]).proto()
    found = run_reference(emitted, {"x": x, "w": w, "y_grad": seed})["w_grad"]
    middle = found[:, :, kernel // 2, kernel // 2].astype(np.float64)
    np.testing.assert_allclose(middle, seed[0, 0].astype(np.float64).sum(), rtol=2.0**-11)


def test_batch_of_half_precision() -> None:
    feeds = {"x": normal(2, 2, 6).astype(np.float16), "w": normal(2, 2, 3).astype(np.float16)}
    assert_vjp(helper.make_node("Conv", ["x", "w"], ["y"], strides=[2]), feeds)


def test_conv_of_a_gradient_is_differentiable() -> None:
    """d/dw <x_grad, v> by differences of the emitted gradient."""
    feeds = {"x": normal(1, 2, 7), "w": normal(3, 2, 3)}
    first = cfad.vjp(
        node_model(helper.make_node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 0]), feeds), wrt=["x"]
    ).proto()
    assert_vjp(first, {**feeds, "y_grad": normal(1, 3, 3)}, outputs=["x_grad"], wrt=["w", "y_grad"])


def test_reference_agrees_with_runtime_on_groups() -> None:
    x, w = RNG.standard_normal((2, 6, 7)), RNG.standard_normal((4, 3, 3))
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, strides=[2])
    seed = RNG.standard_normal((2, 4, 3))
    wide = cfad.vjp(node_model(node, {"x": x, "w": w}), wrt=["x", "w"]).proto()
    narrow_feeds = {name: a.astype(np.float32) for name, a in {"x": x, "w": w, "y_grad": seed}.items()}
    narrow = cfad.vjp(node_model(node, {n: narrow_feeds[n] for n in ("x", "w")}), wrt=["x", "w"]).proto()
    expected = run_reference(wide, {"x": x, "w": w, "y_grad": seed})
    found = run_ort(narrow, narrow_feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
