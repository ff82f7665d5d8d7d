"""Rules of rules/shape.py against central differences of the operators in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort
from tests.rules.forms import Case, case, check, check_second, each_form

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def ints(*numbers: int, dtype: type = np.int64) -> np.ndarray:
    return np.asarray(numbers, dtype)


LAYOUT = [
    case("reshape", "Reshape", {"x": normal(2, 6), "s": ints(3, 4)}),
    case("reshape-copied-and-inferred", "Reshape", {"x": normal(2, 3, 4), "s": ints(0, -1)}),
    case("reshape-to-scalar", "Reshape", {"x": normal(1, 1), "s": ints()}),
    case("reshape-allowzero", "Reshape", {"x": normal(0, 3), "s": ints(3, 0)}, allowzero=1),
    case("flatten", "Flatten", {"x": normal(2, 3, 4)}),
    case("flatten-negative", "Flatten", {"x": normal(2, 3, 4)}, axis=-1),
    case("flatten-0", "Flatten", {"x": normal(2, 3)}, axis=0),
    case("squeeze", "Squeeze", {"x": normal(1, 3, 1, 2), "a": ints(0, -2)}),
    case("squeeze-all", "Squeeze", {"x": normal(1, 3, 1, 2)}, forms=("static", "unranked")),
    case("unsqueeze", "Unsqueeze", {"x": normal(3, 2), "a": ints(0, -1)}),
    case("unsqueeze-by-no-axes", "Unsqueeze", {"x": normal(1, 3), "a": ints()}),
    case("unsqueeze-scalar", "Unsqueeze", {"x": normal(), "a": ints(0)}),
    case("transpose", "Transpose", {"x": normal(2, 3, 4)}, perm=[2, 0, 1]),
    case("transpose-reversed", "Transpose", {"x": normal(2, 3, 4)}),
    case("expand", "Expand", {"x": normal(3, 1), "s": ints(2, 1, 4)}),
    case("expand-one-sided", "Expand", {"x": normal(2, 3), "s": ints(1)}),
    case("expand-scalar", "Expand", {"x": normal(), "s": ints(2, 2)}),
    case("expand-to-empty", "Expand", {"x": normal(1, 3), "s": ints(0, 3)}),
    case("tile", "Tile", {"x": normal(2, 3), "r": ints(3, 2)}),
    case("tile-one-axis", "Tile", {"x": normal(2, 3), "r": ints(1, 2)}),
    case("tile-once", "Tile", {"x": normal(2, 3), "r": ints(1, 1)}),
    case("tile-never", "Tile", {"x": normal(2, 3), "r": ints(2, 0)}),
    case("concat", "Concat", {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 2)}, axis=1),
    case("concat-negative", "Concat", {"a": normal(2, 3), "b": normal(2, 1)}, axis=-1),
    case("concat-alone", "Concat", {"a": normal(2, 3)}, axis=0),
    case("concat-empty", "Concat", {"a": normal(0, 3), "b": normal(2, 3)}, axis=0),
    case("depth-to-space", "DepthToSpace", {"x": normal(2, 8, 3, 2)}, blocksize=2),
    case("depth-to-space-crd", "DepthToSpace", {"x": normal(2, 8, 3, 2)}, blocksize=2, mode="CRD"),
    case("space-to-depth", "SpaceToDepth", {"x": normal(2, 2, 6, 4)}, blocksize=2),
    case("reverse-sequence", "ReverseSequence", {"x": normal(4, 3, 2), "l": ints(1, 3, 4)}),
    case(
        "reverse-sequence-batch-0",
        "ReverseSequence",
        {"x": normal(3, 4), "l": ints(1, 3, 4)},
        batch_axis=0,
        time_axis=1,
    ),
]

TWO, THREE = {"y": DOUBLE, "z": DOUBLE}, {"y": DOUBLE, "z": DOUBLE, "w": DOUBLE}
SPLITS = [
    case("sizes", "Split", {"x": normal(6, 2), "s": ints(1, 3, 2)}, outputs=THREE),
    case("sizes-negative-axis", "Split", {"x": normal(2, 6), "s": ints(5, 1)}, outputs=TWO, axis=-1),
    case("equal", "Split", {"x": normal(6, 2)}, outputs=THREE, num_outputs=3),
    case("uneven", "Split", {"x": normal(2, 7)}, outputs=THREE, num_outputs=3, axis=1),
    case("whole", "Split", {"x": normal(2, 3)}, outputs={"y": DOUBLE}, num_outputs=1),
    case("one-seeded", "Split", {"x": normal(6, 2), "s": ints(1, 3, 2)}, outputs=THREE, seeded=("z",)),
    case("empty-part", "Split", {"x": normal(2, 2), "s": ints(2, 0)}, outputs=TWO),
]

PADS = [
    case("constant", "Pad", {"x": normal(2, 3), "p": ints(1, 0, 2, 1)}),
    case("negative", "Pad", {"x": normal(4, 3), "p": ints(-1, 2, -1, -1)}),
    case("value", "Pad", {"x": normal(2, 3), "p": ints(1, 0, 2, 1), "v": normal()}),
    case("value-negative", "Pad", {"x": normal(4, 3), "p": ints(-1, 2, 1, -1), "v": normal()}),
    case("axes", "Pad", {"x": normal(2, 3, 2), "p": ints(1, 2, 0, 1), "v": normal(), "a": ints(2, 0)}),
    case("axes-negative", "Pad", {"x": normal(2, 3), "p": ints(1, 2), "v": None, "a": ints(-1)}),
    *(case(mode, "Pad", {"x": normal(4, 3), "p": ints(2, 1, 3, 2)}, mode=mode) for mode in ("reflect", "edge", "wrap")),
    case("reflect-axes", "Pad", {"x": normal(2, 4), "p": ints(3, 1), "v": None, "a": ints(1)}, mode="reflect"),
    case("edge-negative", "Pad", {"x": normal(4, 3), "p": ints(-1, 2, 1, -1)}, mode="edge"),
]

CENTRES = [
    case("crop", "CenterCropPad", {"x": normal(7, 4), "s": ints(4, 1)}),
    case("pad", "CenterCropPad", {"x": normal(4, 1), "s": ints(7, 4)}),
    case("both-axes", "CenterCropPad", {"x": normal(3, 6, 2), "s": ints(3, 5)}, axes=[-2, 2]),
]

RANGES = [
    case("whole", "Range", {"start": np.array(0.5), "limit": np.array(4.2), "delta": np.array(0.7)}),
    case("down", "Range", {"start": np.array(3.0), "limit": np.array(-1.3), "delta": np.array(-0.9)}),
    case("empty", "Range", {"start": np.array(3.0), "limit": np.array(1.0), "delta": np.array(1.0)}),
]


@each_form(LAYOUT)
def test_layout(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("computed", [False, True])
def test_squeeze_by_no_axes(computed: bool) -> None:
    """All axes of length 1 go in ONNX Runtime, none in ONNX's inference: the cotangent fits either."""
    nodes = [helper.make_node("Squeeze", ["x", "a"], ["q"]), helper.make_node("Reshape", ["q", "flat"], ["y"])]
    feeds, constants = {"x": normal(1, 3, 1)}, {"flat": ints(-1)}
    (feeds if computed else constants)["a"] = ints()
    assert_vjp(nodes, feeds, constants=constants, wrt=["x"])


@each_form(SPLITS)
def test_split(case: Case, form: str) -> None:
    check(case, form)


@each_form(PADS)
def test_pad(case: Case, form: str) -> None:
    check(case, form)


@each_form(CENTRES)
def test_centre_crop_pad(case: Case, form: str) -> None:
    check(case, form)


@each_form(RANGES)
def test_range(case: Case, form: str) -> None:
    check(case, form)


def test_outputs_that_a_split_leaves_out_get_zeros() -> None:
    """ONNX Runtime 1.32 cannot run such a Split; the differentiated model names the outputs that it reads."""
    node = helper.make_node("Split", ["x", "s"], ["y", "", "z"])
    model = node_model(node, {"x": normal(6, 2)}, constants={"s": ints(1, 3, 2)}, outputs=TWO, dims="symbolic")
    feeds = {"x": normal(6, 2), "y_grad": normal(1, 2), "z_grad": normal(2, 2)}
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), feeds)["x_grad"]
    np.testing.assert_array_equal(found, np.concatenate([feeds["y_grad"], np.zeros((3, 2)), feeds["z_grad"]]))


@pytest.mark.parametrize("op_type", ["Tile", "Expand"])
def test_half_precision_sums_in_single_precision(op_type: str) -> None:
    feeds = {"x": np.ones((1, 2), np.float16)}
    node = helper.make_node(op_type, ["x", "n"], ["y"])
    model = node_model(node, feeds, constants={"n": ints(4096, 1 if op_type == "Tile" else 2)}, dims="symbolic")
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": np.ones((4096, 2), np.float16)})["x_grad"]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, [[4096, 4096]])


@pytest.mark.parametrize("op_type", ["EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_only_the_shape_is_read(op_type: str) -> None:
    x = np.abs(normal(3, 3)).astype(np.float32) / 9
    nodes = [helper.make_node(op_type, ["x"], ["k"]), helper.make_node("Add", ["x", "k"], ["y"])]
    found = run_ort(cfad.vjp(node_model(nodes, {"x": x}), wrt=["x"]).proto(), {"x": x, "y_grad": np.ones_like(x)})
    np.testing.assert_array_equal(found["x_grad"], np.ones_like(x))


@each_form([*LAYOUT, *SPLITS, *PADS, *CENTRES], ("static", "symbolic"))
def test_second_order(case: Case, form: str) -> None:
    check_second(case, form)
