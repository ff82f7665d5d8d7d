"""Rules of rules/indexing.py and rules/scattering.py against central differences of the operators in ONNX Runtime."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, INT64, assert_vjp, node_model, run_ort
from tests.rules.forms import Case, case, check, check_second, each_form

RNG = np.random.default_rng(7)
BY_INDEX_TYPE = pytest.mark.parametrize("index_type", [np.int32, np.int64])


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def gathering(name: str, shape: tuple[int, ...], indices: object, axis: int, op_type: str = "Gather") -> Case:
    return case(name, op_type, {"x": normal(*shape), "i": np.asarray(indices, np.int64)}, axis=axis)


GATHERS = [
    gathering("scalar", (4, 3), 2, 0),
    gathering("scalar-negative", (4, 3), -1, 0),
    gathering("scalar-axis-1", (4, 3, 2), -2, 1),
    gathering("scalar-last-axis", (4, 3), 1, -1),
    gathering("scalar-of-vector", (4,), 3, 0),
    gathering("one", (4, 3), [2], 0),
    gathering("one-in-matrix", (4, 3), [[2]], 0),
    gathering("duplicates", (4, 3), [0, -1, 3, 0, 0], 0),
    gathering("matrix", (4, 3), [[0, 1, 1], [-1, 3, 0]], 0),
    gathering("matrix-of-vector", (4,), [[0, 1, 1], [-1, 3, 0]], 0),
    gathering("matrix-middle-axis", (2, 4, 3), [[0, 1, 1], [-1, 3, 0]], 1),
    gathering("matrix-last-axis", (2, 4), [[0, 1, 1], [-1, 3, 0]], -1),
    gathering("vector-middle-axis", (2, 4, 3), [1, 1, -1], -2),
    gathering("none", (4, 3), np.zeros(0), 0),
    gathering("rows-of-none", (2, 0, 1), [1, -1, 0], 0),
    gathering("elements", (3, 4), [[0, -1, 1, 0], [0, 2, 1, 0]], 0, "GatherElements"),
    gathering("elements-fewer", (3, 4), [[0, -1, 1], [3, 3, 3]], 1, "GatherElements"),
    gathering("elements-negative-axis", (2, 3, 2), [[[0], [0]], [[1], [-1]]], -1, "GatherElements"),
]


def by_vectors(name: str, shape: tuple[int, ...], indices: object, batch_dims: int = 0) -> Case:
    return case(name, "GatherND", {"x": normal(*shape), "i": np.asarray(indices, np.int64)}, batch_dims=batch_dims)


VECTORS = [
    by_vectors("elements", (3, 4), [[0, 1], [-1, 3], [0, 1]]),
    by_vectors("rows", (3, 4), [[[0], [2]], [[-1], [2]]]),
    by_vectors("one-row", (3, 4), [2]),
    by_vectors("one-element", (3, 4), [[2, -1]]),
    by_vectors("middle", (3, 2, 4), [[0, 1], [-1, 1], [0, 1]]),
    by_vectors("batch", (2, 3, 4), [[[0], [2]], [[-1], [-1]]], 1),
    by_vectors("batch-elements", (2, 3, 4), [[0, 1], [2, -1]], 1),
    by_vectors("two-batches", (2, 2, 3), [[[0], [2]], [[-1], [1]]], 2),
]

CONDITION = np.array([True, False, True, True])
CHOICES = [
    case("compress", "Compress", {"x": normal(4, 3), "c": CONDITION}, axis=0),
    case("compress-last-axis", "Compress", {"x": normal(2, 4), "c": CONDITION}, axis=-1),
    case("compress-short-condition", "Compress", {"x": normal(3, 6), "c": CONDITION}, axis=1),
    case("compress-elements", "Compress", {"x": normal(2, 4), "c": CONDITION}),
    case("compress-nothing", "Compress", {"x": normal(2, 4), "c": np.zeros(2, bool)}, axis=0),
]

TOP = {"y": DOUBLE, "i": INT64}
DISTINCT = RNG.permutation(24).reshape(4, 6) / 4.0
RANKINGS = [
    case("largest", "TopK", {"x": DISTINCT, "k": np.array([2])}, outputs=TOP, seeded=("y",)),
    case("smallest", "TopK", {"x": DISTINCT, "k": np.array([3])}, outputs=TOP, seeded=("y",), largest=0, axis=0),
    case("unsorted", "TopK", {"x": DISTINCT, "k": np.array([3])}, outputs=TOP, seeded=("y",), sorted=0, axis=-1),
    case("everything", "TopK", {"x": DISTINCT, "k": np.array([6])}, outputs=TOP, seeded=("y",)),
]


@each_form(GATHERS)
@BY_INDEX_TYPE
def test_gather(case: Case, form: str, index_type: type) -> None:
    check(of_index_type(case, index_type), form)


def of_index_type(case: Case, index_type: type) -> Case:
    return dataclasses.replace(case, integers={k: a.astype(index_type) for k, a in case.integers.items()})


@each_form(VECTORS)
def test_gather_by_vectors(case: Case, form: str) -> None:
    check(case, form)


@each_form(CHOICES)
def test_compress(case: Case, form: str) -> None:
    check(case, form)


@each_form(RANKINGS)
def test_top_k(case: Case, form: str) -> None:
    check(case, form)


UNIQUE = {"y": DOUBLE, "i": INT64, "v": INT64, "c": INT64}
REPEATED = np.array([2.5, 1.25, 2.5, -3.0, 1.25])


@pytest.mark.parametrize("sorted_", [0, 1])
def test_unique_sends_to_the_first_of_equal_elements(sorted_: int) -> None:
    node = helper.make_node("Unique", ["x"], list(UNIQUE), sorted=sorted_)
    model = node_model(node, {"x": REPEATED}, outputs=UNIQUE, dims="symbolic")
    emitted = cfad.vjp(model, wrt=["x"], outputs=["y"]).proto()
    primal = run_ort(model, {"x": REPEATED})
    seed = normal(3)
    expected = np.zeros(5)
    for cotangent, value in zip(seed, primal["y"], strict=True):
        expected[list(REPEATED).index(value)] = cotangent
    np.testing.assert_array_equal(run_ort(emitted, {"x": REPEATED, "y_grad": seed})["x_grad"], expected)


def test_unique_rows() -> None:
    rows = np.array([[1.0, 2.0], [0.5, 3.0], [1.0, 2.0]])
    node = helper.make_node("Unique", ["x"], ["y"], axis=0)
    nodes = [node, helper.make_node("Reshape", ["y", "s"], ["z"])]
    model = node_model(nodes, {"x": rows}, constants={"s": np.array([-1])}, dims="symbolic")
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": rows, "z_grad": np.array([1.0, 2.0, 3.0, 4.0])})["x_grad"]
    np.testing.assert_array_equal(found, [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]])


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("index_type", [np.int64, np.float32])
def test_one_hot_values(axis: int, index_type: type) -> None:
    indices = np.array([[0, 2, -1], [7, 1, 0]], index_type)
    feeds = {"i": indices, "d": np.asarray(3, index_type), "v": np.array([0.25, -1.5], np.float32)}
    assert_vjp(helper.make_node("OneHot", ["i", "d", "v"], ["y"], axis=axis), feeds, wrt=["v"], rtol=1e-3)


SCATTERED = {"x": normal(3, 4), "i": np.array([[0, 2], [-2, 1]]), "u": normal(2, 2)}
MEETING = {"x": normal(3, 4), "i": np.array([[0, 2], [0, -1], [-3, 2]]), "u": normal(3, 2)}
ROWS = {"x": normal(4, 3), "i": np.array([[2], [-4]]), "u": normal(2, 3)}
MEETING_ROWS = {"x": normal(4, 3), "i": np.array([[2], [-4], [-2], [0]]), "u": normal(4, 3)}
ELEMENTS = {"x": normal(2, 3, 2), "i": np.array([[[0, 1], [1, -1]], [[0, 1], [0, 0]]]), "u": normal(2, 2, 2)}


def scatters() -> list[Case]:
    found = [
        case("elements", "ScatterElements", SCATTERED),
        case("elements-axis-1", "ScatterElements", SCATTERED, axis=1),
        case("elements-last-axis", "ScatterElements", SCATTERED, axis=-1),
        case("rows", "ScatterND", ROWS),
        case("one-row", "ScatterND", {"x": normal(4, 3), "i": np.array([1]), "u": normal(3)}),
        case("nothing", "ScatterND", {"x": normal(4, 3), "i": np.zeros((0, 1), np.int64), "u": normal(0, 3)}),
    ]
    for reduction in ("add", "mul", "max", "min"):
        found += [
            case(f"{reduction}-elements", "ScatterElements", SCATTERED, reduction=reduction),
            case(f"{reduction}-elements-meeting", "ScatterElements", MEETING, reduction=reduction, axis=-2),
            case(f"{reduction}-rows", "ScatterND", ROWS, reduction=reduction),
            case(f"{reduction}-rows-meeting", "ScatterND", MEETING_ROWS, reduction=reduction),
            case(f"{reduction}-vectors-meeting", "ScatterND", ELEMENTS, reduction=reduction),
        ]
    return found


@each_form(scatters())
def test_scatter(case: Case, form: str) -> None:
    check(case, form)


CACHE = {"x": normal(2, 5, 3), "u": normal(2, 2, 3)}
CACHES = [
    case("whole", "TensorScatter", CACHE, opset=24),
    case("at", "TensorScatter", {**CACHE, "w": np.array([1, 3])}, opset=24),
    case("circular", "TensorScatter", {**CACHE, "w": np.array([4, 0])}, opset=24, mode="circular"),
    case(
        "axis",
        "TensorScatter",
        {"x": normal(2, 3, 2, 4), "u": normal(2, 1, 2, 4), "w": np.array([2, 0])},
        opset=24,
        axis=1,
    ),
]


@each_form([dataclasses.replace(c, needs_rank=True) for c in CACHES])
def test_cache_update(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("zeros", [[0], [0, 2], [1]])
def test_a_zero_factor_leaves_the_product_of_the_others(zeros: list[int]) -> None:
    updates = normal(4)
    updates[zeros] = 0.0
    feeds = {"x": normal(2), "i": np.array([0, 1, 0, 0]), "u": updates}
    assert_vjp(helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], reduction="mul"), feeds, dims="symbolic")


def test_ties_share_evenly() -> None:
    feeds = {"x": np.array([2.0, 5.0]), "i": np.array([0, 0, 1, 1]), "u": np.array([2.0, 1.0, 1.0, 5.0])}
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], reduction="max")
    found = run_ort(
        cfad.vjp(node_model(node, feeds), wrt=["x", "u"]).proto(), {**feeds, "y_grad": np.array([6.0, 8.0])}
    )
    np.testing.assert_array_equal(found["x_grad"], [3.0, 4.0])
    np.testing.assert_array_equal(found["u_grad"], [3.0, 0.0, 0.0, 4.0])


@pytest.mark.parametrize("op_type", ["Gather", "GatherND", "GatherElements"])
def test_half_precision_adds_duplicates_in_single_precision(op_type: str) -> None:
    """4096 cotangents of 1 on one row: a float16 sum would stop at 2048."""
    indices = np.zeros((4096, 1) if op_type != "Gather" else 4096, np.int64)
    feeds = {"x": np.ones((2, 1), np.float16), "i": indices}
    node = helper.make_node(op_type, ["x", "i"], ["y"])
    emitted = cfad.vjp(node_model(node, feeds, dims="symbolic"), wrt=["x"]).proto()
    found = run_ort(emitted, {**feeds, "y_grad": np.ones((4096, 1), np.float16)})["x_grad"]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, [[4096.0], [0.0]])


@pytest.mark.parametrize("op_type", ["Gather", "GatherND"])
def test_duplicates_are_all_counted_by_several_threads(op_type: str) -> None:
    """ONNX Runtime's ScatterND loses updates that threads add to one row: the rule must not use it so."""
    rows = RNG.integers(0, 500, 20000)
    feeds = {"x": np.ones((500, 64), np.float32), "i": rows if op_type == "Gather" else rows[:, None]}
    emitted = cfad.vjp(node_model(helper.make_node(op_type, ["x", "i"], ["y"]), feeds), wrt=["x"]).proto()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(emitted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(["x_grad"], {**feeds, "y_grad": np.ones((20000, 64), np.float32)})
    np.testing.assert_array_equal(found, np.repeat(np.bincount(rows, minlength=500)[:, None], 64, 1))


def test_reads_of_one_tensor_add_up() -> None:
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["a"]),
        helper.make_node("Gather", ["x", "j"], ["b"]),
        helper.make_node("GatherElements", ["x", "e"], ["c"], axis=1),
        helper.make_node("Concat", ["a", "b", "c", "x"], ["y"], axis=0),
    ]
    constants = {"i": np.array([1]), "j": np.array([[0, 1, 1]]).reshape(3), "e": np.array([[0, 0, 1]])}
    assert_vjp(nodes, {"x": normal(2, 3)}, constants=constants, dims="symbolic")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_read_and_written_in_a_loop(dtype: type) -> None:
    """x[i] of a captured tensor is doubled and written to row n - 1 - i of the carry."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "n"], ["row"]),
            helper.make_node("Sub", ["last", "n"], ["to"]),
            helper.make_node("Mul", ["row", "row"], ["square"]),
            helper.make_node("Unsqueeze", ["to", "zero"], ["place"]),
            helper.make_node("ScatterND", ["carry", "place", "square"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carry", elem, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", elem, None),
        ],
    )
    node = helper.make_node("Loop", ["trips", "", "z"], ["y"], body=body)
    constants = {"last": np.asarray(3), "zero": np.array([0]), "trips": np.asarray(3)}
    feeds = {"x": normal(4, 2).astype(dtype), "z": normal(4, 2).astype(dtype)}
    model = node_model(node, feeds, constants=constants, outputs={"y": elem}, dims="symbolic")
    emitted = cfad.vjp(model, wrt=["x", "z"]).proto()
    seed = normal(4, 2).astype(dtype)
    found = run_ort(emitted, {**feeds, "y_grad": seed})
    expected = 2 * feeds["x"] * seed[::-1]
    expected[3] = 0
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-2 if dtype is np.float16 else 1e-6)
    np.testing.assert_array_equal(found["z_grad"], np.concatenate([seed[:1], np.zeros((3, 2), dtype)]))


@each_form([*GATHERS, *VECTORS, *CHOICES, *RANKINGS], ("static", "symbolic"))
def test_second_order(case: Case, form: str) -> None:
    check_second(case, form)
