"""Rules of rules/linalg.py against central differences, and what they emit for weights."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(37)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


SHAPES = {
    "vectors": ((3,), (3,)),
    "vector-matrix": ((3,), (3, 4)),
    "matrix-vector": ((2, 3), (3,)),
    "matrices": ((2, 3), (3, 4)),
    "row-column": ((1, 3), (3, 1)),
    "outer": ((2, 1), (1, 4)),
    "batch-vector": ((5, 2, 3), (3,)),
    "vector-batch": ((3,), (5, 3, 4)),
    "vector-batches": ((3,), (2, 5, 3, 4)),
    "batch-matrix": ((5, 2, 3), (3, 4)),
    "batches-matrix": ((2, 5, 2, 3), (3, 4)),
    "matrix-batch": ((2, 3), (5, 3, 4)),
    "batch-batch": ((5, 2, 3), (5, 3, 4)),
    "one-batch": ((1, 2, 3), (5, 3, 4)),
    "batch-one": ((5, 2, 3), (1, 3, 4)),
    "batches-batch": ((2, 5, 2, 3), (5, 3, 4)),
    "batch-batches": ((5, 2, 3), (2, 5, 3, 4)),
    "both-stretched": ((2, 1, 2, 3), (1, 5, 3, 4)),
    "empty-batch": ((0, 2, 3), (3, 4)),
    "empty-batches": ((0, 2, 3), (1, 3, 4)),
    "no-terms": ((2, 0), (0, 3)),
}
PRODUCTS = [
    case(name, "MatMul", {"a": normal(*a), "b": normal(*b)}, needs_rank=name != "vectors")
    for name, (a, b) in SHAPES.items()
]


@each_form(PRODUCTS)
def test_matrix_product(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    assert_same_gradient(case.node, case.floats, wrt=["a", "b"], dtype=dtype, runner="ort", dims="symbolic")


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_second_order(case: Case, dims: str) -> None:
    assert_second_order(case.node, case.floats, wrt=["a", "b"], dims=dims)


@pytest.mark.parametrize("name", ["vector-matrix", "batch-matrix", "matrix-batch", "both-stretched"])
@pytest.mark.parametrize("constant", ["a", "b"])
def test_product_with_a_constant(name: str, constant: str) -> None:
    feeds = dict(zip("ab", (normal(*shape) for shape in SHAPES[name]), strict=True))
    constants = {constant: feeds.pop(constant)}
    assert_vjp(helper.make_node("MatMul", ["a", "b"], ["y"]), feeds, constants=constants, dims="symbolic")


def test_square_of_a_matrix() -> None:
    assert_vjp(helper.make_node("MatMul", ["x", "x"], ["y"]), {"x": normal(3, 3)})


@pytest.mark.parametrize("rows", [(), (2,), (5, 2)])
def test_a_left_side_of_unknown_rank_with_a_matrix(rows: tuple[int, ...]) -> None:
    """The input keeps its rank to itself: it comes from an If whose branches differ."""
    branches = [
        helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, DOUBLE, None)])
        for name, node in {
            "same": helper.make_node("Identity", ["a"], ["same"]),
            "more": helper.make_node("Unsqueeze", ["a", "zero"], ["more"]),
        }.items()
    ]
    nodes = [
        helper.make_node("If", ["keep"], ["hidden"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("MatMul", ["hidden", "w"], ["product"]),
        helper.make_node("Reshape", ["product", "flat"], ["y"]),
    ]
    feeds = {"a": normal(*rows, 3), "w": normal(3, 4), "keep": np.array(True)}
    constants = {"flat": np.asarray([-1]), "zero": np.asarray([0])}
    assert_vjp(nodes, feeds, constants=constants, dims="symbolic", check=False)


def operators_in(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("rows", [(2,), (5, 2)])
def test_a_weight_is_never_transposed(rows: tuple[int, ...]) -> None:
    feeds = {"x": normal(*rows, 3), "w": normal(3, 4)}
    emitted = cfad.vjp(node_model(helper.make_node("MatMul", ["x", "w"], ["y"]), feeds), wrt=["x", "w"]).proto()
    assert "Transpose" not in operators_in(emitted)
    assert operators_in(emitted).count("Gemm") == 2


def test_equal_batches_are_not_summed() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (double[B, T, 3] a, double[B, 3, T] b) => (double[B, T, T] y) { y = MatMul(a, b) }"""
    )
    emitted = cfad.vjp(model, wrt=["a", "b"]).proto()
    assert "ReduceSum" not in operators_in(emitted)
    feeds = {"a": normal(4, 5, 3), "b": normal(4, 3, 5)}
    assert_vjp(model, feeds)


@pytest.mark.parametrize(("a", "b"), [(1, 5), (5, 1), (4, 4), (1, 1)])
def test_batches_that_may_stretch_each_other(a: int, b: int) -> None:
    feeds = {"a": normal(a, 2, 3), "b": normal(b, 3, 2)}
    assert_vjp(helper.make_node("MatMul", ["a", "b"], ["y"]), feeds, dims="symbolic")


ADDENDS = {"none": None, "scalar": (), "row": (4,), "one-row": (1, 4), "column": (2, 1), "one": (1,), "full": (2, 4)}
GEMMS = [
    case(
        f"{name}-{trans_a}{trans_b}",
        "Gemm",
        {
            "a": normal(*((3, 2) if trans_a else (2, 3))),
            "b": normal(*((4, 3) if trans_b else (3, 4))),
            **({} if shape is None else {"c": normal(*shape)}),
        },
        transA=trans_a,
        transB=trans_b,
        alpha=1.0 if trans_a else 0.7,
        beta=1.0 if trans_a else -1.3,
    )
    for (name, shape), trans_a, trans_b in itertools.product(ADDENDS.items(), (0, 1), (0, 1))
]


@each_form(GEMMS, ("static", "symbolic"))
def test_gemm(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("case", [c for c in GEMMS if c.name.startswith(("full", "row"))], ids=lambda case: case.name)
def test_gemm_second_order(case: Case) -> None:
    assert_second_order(case.node, case.floats, wrt=list(case.floats))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", [c for c in GEMMS if c.name.startswith("one-row")], ids=lambda case: case.name)
def test_gemm_in_narrow_types(case: Case, dtype: type) -> None:
    assert_same_gradient(case.node, case.floats, wrt=list(case.floats), dtype=dtype, runner="ort")


TRIANGLES = [
    case(
        f"upper{upper}-k{k}",
        "Trilu",
        {"x": normal(2, 3, 4), **({} if k is None else {"k": np.asarray(k)})},
        upper=upper,
    )
    for upper in (0, 1)
    for k in (None, -1, 1, 5)
]


@each_form(TRIANGLES)
def test_trilu(case: Case, form: str) -> None:
    check(case, form)


def test_bias_of_many_rows_in_half_precision() -> None:
    """4096 cotangents of 1: a float16 sum would stop at 2048."""
    feeds = {"a": np.ones((4096, 1), np.float16), "b": np.ones((1, 2), np.float16), "c": np.zeros(2, np.float16)}
    model = node_model(helper.make_node("Gemm", ["a", "b", "c"], ["y"]), feeds, dims="symbolic")
    found = run_ort(cfad.vjp(model, wrt=["c"]).proto(), {**feeds, "y_grad": np.ones((4096, 2), np.float16)})["c_grad"]
    np.testing.assert_array_equal(found, [4096.0, 4096.0])
