"""Rules of rules/reductions.py and rules/cumulative.py against central differences; zeros and ties in closed form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(31)
REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)


def positive(*shape: int) -> np.ndarray:
    return np.asarray(RNG.uniform(0.5, 2, shape))


def axes_of(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def reduced(op_type: str) -> list[Case]:
    """All ways to name axes: absent, empty, one, several, negative, all."""
    x = positive(2, 3, 4) * (1 if op_type == "ReduceLogSum" else RNG.choice([-1.0, 1.0], (2, 3, 4)))
    found = [
        case(
            f"{op_type}-axes{''.join(map(str, axes))}-keep{keep}", op_type, {"x": x, "a": axes_of(*axes)}, keepdims=keep
        )
        for axes, keep in itertools.product(((1,), (-1, 0), (0, 1, 2), ()), (0, 1))
    ]
    for keep in (0, 1):
        found.append(case(f"{op_type}-absent-keep{keep}", op_type, {"x": x}, keepdims=keep))
        found.append(case(f"{op_type}-noop-keep{keep}", op_type, {"x": x}, keepdims=keep, noop_with_empty_axes=1))
    empty = {"x": x, "a": axes_of()}
    found.append(case(f"{op_type}-empty-noop", op_type, empty, keepdims=0, noop_with_empty_axes=1))
    return found


CASES = [each for op_type in REDUCTIONS for each in reduced(op_type)]
BRIEF = [each for each in CASES if each.name.endswith(("axes1-keep0", "axes-10-keep1", "absent-keep0", "empty-noop"))]


@each_form(CASES, ("static", "computed"))
def test_reduction(case: Case, form: str) -> None:
    check(case, form)


@each_form(BRIEF, ("symbolic", "unranked"))
def test_reduction_of_unknown_shape(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", BRIEF, ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    assert_same_gradient(
        case.node, case.floats, wrt=["x"], dtype=dtype, runner="ort", constants=case.integers, dims="symbolic"
    )


@pytest.mark.parametrize("case", BRIEF, ids=lambda case: case.name)
def test_second_order(case: Case) -> None:
    assert_second_order(case.node, case.floats, wrt=["x"], constants=case.integers, dims="symbolic")


def gradient(
    op_type: str, x: Any, seed: Any, *, axes: Any = None, dtype: type = np.float64, **options: Any
) -> np.ndarray:
    feeds = {"x": np.asarray(x, dtype)}
    constants = {} if axes is None else {"a": axes_of(*axes)}
    node = helper.make_node(op_type, ["x", *constants], ["y"], **options)
    model = node_model(node, feeds, constants=constants, dims="symbolic")
    return run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": np.asarray(seed, dtype)})["x_grad"]


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_ties_are_shared_evenly(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    data = [[1.0, 1.0, 1.0], [2.0, 0.0, 2.0], [0.0, 2.0, 0.0]]
    x = torch.tensor(data, requires_grad=True)
    seed = torch.tensor([3.0, 6.0, 12.0])
    (torch.amax if op_type == "ReduceMax" else torch.amin)(x, 1).backward(seed)
    found = gradient(op_type, data, seed.numpy(), axes=[1], keepdims=0)
    np.testing.assert_array_equal(found, x.grad.numpy())


@pytest.mark.parametrize("zeros", [[], [1], [0, 2], [0, 1, 2]])
def test_product_with_zeros(zeros: list[int]) -> None:
    x = np.asarray([[2.0, -3.0, 0.5, 4.0]])
    x[0, zeros] = 0
    others = [[np.prod(np.delete(x[0], k)) for k in range(4)]]
    np.testing.assert_allclose(gradient("ReduceProd", x, [5.0], axes=[1], keepdims=0), np.multiply(5, others))
    assert_vjp(helper.make_node("ReduceProd", ["x"], ["y"]), {"x": x})


@pytest.mark.parametrize("zeros", [[], [1], [0, 2], [0, 1, 2]])
def test_second_derivative_of_a_product_with_zeros(zeros: list[int]) -> None:
    x = np.asarray([[2.0, -3.0, 0.5, 4.0]])
    x[0, zeros] = 0
    node = helper.make_node("ReduceProd", ["x"], ["y"], keepdims=0)
    model = node_model(node, {"x": x}, outputs={"y": DOUBLE})
    first = cfad.vjp(model, wrt=["x"]).proto()
    first.graph.node.append(helper.make_node("Identity", ["x_grad"], ["slope"], name="slope_node"))
    del first.graph.output[:]
    first.graph.output.append(helper.make_tensor_value_info("slope", DOUBLE, [1, 4]))
    second = cfad.vjp(first, wrt=["x"]).proto()
    rows = [
        run_ort(second, {"x": x, "y_grad": np.asarray(1.0), "slope_grad": np.eye(4)[[k]]})["x_grad"][0]
        for k in range(4)
    ]
    expected = [[0.0 if i == j else float(np.prod(np.delete(x[0], [i, j]))) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(rows, expected)


def test_norm_of_the_zero_vector_has_the_subgradient_zero() -> None:
    x = np.asarray([[0.0, 0.0], [3.0, 4.0]])
    found = gradient("ReduceL2", x, [1.0, 5.0], axes=[1], keepdims=0)
    np.testing.assert_allclose(found, [[0.0, 0.0], [3.0, 4.0]])
    assert_second_order(helper.make_node("ReduceL2", ["x"], ["y"], keepdims=0), {"x": x}, wrt=["x"])


def test_l1_at_zero() -> None:
    np.testing.assert_array_equal(gradient("ReduceL1", [0.0, -2.0, 3.0], [2.0]), [0.0, -2.0, 2.0])


def test_log_sum_exp_of_large_and_masked_elements() -> None:
    x = [[1000.0, 1000.0], [-np.inf, 3.0], [-np.inf, -np.inf]]
    found = gradient("ReduceLogSumExp", x, [2.0, 5.0, 0.0], axes=[1], keepdims=0)
    np.testing.assert_allclose(found, [[1.0, 1.0], [0.0, 5.0], [0.0, 0.0]])


@pytest.mark.parametrize("op_type", ["ReduceMean", "ReduceMax"])
def test_half_precision_counts_in_single_precision(op_type: str) -> None:
    """4096 ones: counted in float16 there would be 2048 at most."""
    found = gradient(op_type, np.ones(4096), np.ones(1), dtype=np.float16)
    np.testing.assert_array_equal(found, np.full(4096, 1 / 4096))


def test_mean_of_more_elements_than_half_precision_reaches() -> None:
    found = gradient("ReduceMean", np.ones(100_000), np.ones(1), dtype=np.float16)
    np.testing.assert_allclose(found, 1e-5, rtol=1e-2)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceSumSquare"])
def test_no_elements(op_type: str) -> None:
    assert gradient(op_type, np.zeros((0, 3)), np.ones(3), axes=[0], keepdims=0).shape == (0, 3)
    assert gradient(op_type, np.zeros((3, 0)), np.ones(0), axes=[0], keepdims=0).shape == (3, 0)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_an_index_passes_no_derivative(op_type: str) -> None:
    nodes = [
        helper.make_node(op_type, ["x"], ["i"], axis=0),
        helper.make_node("Cast", ["i"], ["f"], to=DOUBLE),
        helper.make_node("Mul", ["f", "x"], ["y"]),
    ]
    x = np.asarray([0.5, -1.0, 3.0])
    found = run_ort(cfad.vjp(node_model(nodes, {"x": x}), wrt=["x"]).proto(), {"x": x, "y_grad": np.ones(3)})
    np.testing.assert_array_equal(found["x_grad"], np.full(3, 2.0 if op_type == "ArgMax" else 1.0))


RUNNING = [
    case(f"{op_type}-{axis}-exclusive{exclusive}-reverse{reverse}", op_type, {"x": RNG.standard_normal((2, 3, 4)),
        "a": np.asarray(axis)}, exclusive=exclusive, reverse=reverse, opset=26)
    for op_type in ("CumSum", "CumProd")
    for axis in (0, -1, 1)
    for exclusive in (0, 1)
    for reverse in (0, 1)
]  # fmt: skip


@each_form([each for each in RUNNING if each.node.op_type == "CumSum"])
def test_running_sum(case: Case, form: str) -> None:
    check(case, form)


@each_form([each for each in RUNNING if each.node.op_type == "CumProd"], ("static", "symbolic"))
def test_running_product(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("case", [each for each in RUNNING if "-1-" in each.name], ids=lambda case: case.name)
def test_second_order_of_running(case: Case) -> None:
    zeros = np.where(RNG.random((2, 3, 4)) < 0.3, 0, case.floats["x"])
    assert_second_order(case.node, {"x": zeros}, wrt=["x"], constants=case.integers, opset=26)


@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_product_with_zeros(exclusive: int) -> None:
    x = np.asarray([2.0, 0.0, 3.0, 0.0, -1.0])
    node = helper.make_node("CumProd", ["x", "a"], ["y"], exclusive=exclusive)
    assert_vjp(node, {"x": x}, constants={"a": np.asarray(0)}, opset=26)


@pytest.mark.parametrize("axis", [0, 2, -2])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_running_product_along_a_computed_axis(axis: int, exclusive: int, reverse: int) -> None:
    x = np.where(RNG.random((2, 3, 4)) < 0.2, 0, RNG.standard_normal((2, 3, 4)))
    node = helper.make_node("CumProd", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    assert_vjp(node, {"x": x, "a": np.asarray(axis)}, wrt=["x"], opset=26)


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reduction_of_no_elements(op_type: str) -> None:
    """The gradient is empty too, also after ONNX Runtime's optimizer, which removes an Expand to no elements."""
    x = np.zeros((2, 0, 4), np.float32)
    node = helper.make_node(op_type, ["x", "a"], ["s"])
    nodes = [node, helper.make_node("Mul", ["s", "s"], ["y"])]
    model = node_model(nodes, {"x": x}, constants={"a": axes_of(1)}, opset=20)
    seed = np.ones((2, 1, 4), np.float32)
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": seed})
    assert found["x_grad"].shape == (2, 0, 4)
