"""The rule of Slice against central differences of the operator in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort
from tests.rules.forms import FORMS, Case, case, check, check_second, each_form

RNG = np.random.default_rng(6)
BEYOND, BEFORE = 2**63 - 1, -(2**63)


def slicing(
    name: str,
    shape: tuple[int, ...],
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
    dtype: type = np.int64,
    forms: tuple[str, ...] = FORMS,
) -> Case:
    bounds = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    arrays = {k: None if v is None else np.asarray(v, dtype) for k, v in bounds.items()}
    while arrays and list(arrays.values())[-1] is None:
        del arrays[list(arrays)[-1]]
    return case(name, "Slice", {"x": np.asarray(RNG.standard_normal(shape)), **arrays}, forms=forms)


CASES = [
    slicing("leading-axes", (5, 4), [1, 0], [3, 2]),
    slicing("one-axis", (5, 4), [1], [3], [1]),
    slicing("negative-axis", (5, 4), [1], [3], [-1]),
    slicing("negative-bounds", (5, 4), [-3], [-1], [0]),
    slicing("clamped", (5, 4), [-9, 1], [9, BEYOND], [0, 1]),
    slicing("empty", (5, 4), [3], [1], [0]),
    slicing("empty-at-end", (5, 4), [7], [9], [0]),
    slicing("last", (5, 4), [-1], [BEYOND], [1]),
    slicing("int32", (5, 4), [-3, 1], [-1, 3], [-1, 0], dtype=np.int32),
    slicing("step", (7, 4), [1], [6], [0], [2]),
    slicing("step-past-end", (7, 4), [0, 1], [7, 4], [0, 1], [3, 2]),
    slicing("step-long", (4, 3), [1], [BEYOND], [0], [9]),
    slicing("step-of-int32", (7, 4), [1, -1], [6, -9], [0, -1], [2, -3], dtype=np.int32),
    slicing("element-by-a-step-of-a-billion", (5, 4), [3], [4], [0], [10**9], dtype=np.int32),
    slicing("element-by-a-long-step-back", (5, 4), [-2, 1], [BEFORE, 2], [0, 1], [-(2**40), 10**9]),
    slicing("elements-a-long-step-apart", (150, 2), [3], [BEYOND], [0], [70]),
    slicing("even", (3, 6), [0], [BEYOND], [-1], [2]),
    slicing("odd", (3, 6), [1], [BEYOND], [-1], [2]),
    slicing("step-empty", (4, 3), [3], [1], [0], [2]),
    slicing("flip", (3, 4), [-1], [BEFORE], [1], [-1]),
    slicing("flip-from-beyond", (3, 4), [BEYOND], [BEFORE], [1], [-1]),
    slicing("backwards", (6, 4), [4], [1], [0], [-1]),
    slicing("backwards-step", (7, 4), [-2], [-9], [0], [-2]),
    slicing("backwards-clamped", (7, 4), [99], [0], [0], [-3]),
    slicing("backwards-empty", (4, 3), [1], [3], [0], [-1]),
    slicing("backwards-int32", (5, 4), [3, 2], [0, -9], [0, 1], [-1, -1], dtype=np.int32),
    slicing("backwards-from-before-the-first", (5, 4), [-9, 1], [BEFORE, 3], [0, 1], [-1, 1]),
    slicing("backwards-from-beyond-int32", (5, 4), [BEYOND, 1], [-4, 3], [0, 1], [-2, 1]),
    slicing("second-of-one", (5, 1), [1], [2], [1]),
    slicing("before-the-first", (5, 4), [0], [BEFORE], [0]),
    slicing("mixed-steps", (5, 6, 2), [0, -1, 1], [9, -7, 2], [0, 1, 2], [2, -1, 1]),
    slicing("scalar-steps-all-axes", (5, 6), [4, 0], [0, 6], None, None),
    slicing("empty-input", (0, 3), [0], [2], [0]),
]


@each_form(CASES)
def test_slice(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("seed", range(30))
def test_random_slices_in_every_form(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 6, 2))
    starts, ends = [int(rng.integers(-dim, 8)) for dim in shape], rng.integers(-8, 8, 2).tolist()
    steps = rng.choice([-3, -2, -1, 1, 2, 3], 2).tolist()
    axes = [[0, 1], [-2, 1], [0, -1], [-2, -1]][seed % 4]
    for form in ("static", "symbolic", "computed", "unranked"):
        check(slicing("random", shape, starts, ends, axes, steps), form, flat=True)


@pytest.mark.parametrize("computed", ["starts", "ends", "axes", "steps"])
def test_one_operand_is_computed(computed: str) -> None:
    """The others are constants; there are as many axes as any of them says."""
    bounds = {"starts": [3, -1], "ends": [0, -9], "axes": [0, 1], "steps": [-1, -2]}
    arrays = {name: np.asarray(numbers, np.int32) for name, numbers in bounds.items()}
    feeds = {"x": np.asarray(RNG.standard_normal((5, 4))), computed: arrays.pop(computed)}
    for axes in ("axes",) if computed == "axes" else ("axes", ""):
        node = helper.make_node("Slice", ["x", "starts", "ends", axes, "steps"], ["y"])
        assert_vjp(node, feeds, constants={k: v for k, v in arrays.items() if k in node.input}, dims="symbolic")


def test_static_slice_is_one_pad() -> None:
    node = helper.make_node("Slice", ["x", "s", "e"], ["y"])
    feeds = {"x": np.zeros((5, 4))}
    model = node_model(node, feeds, constants={"s": np.array([1, -2]), "e": np.array([3, 9])})
    emitted = cfad.vjp(model, wrt=["x"]).proto()
    assert [n.op_type for n in emitted.graph.node] == ["Slice", "Pad"]


def test_second_derivative_through_a_slice() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["q"]), helper.make_node("Mul", ["q", "x"], ["c"])]
    nodes += [helper.make_node("Slice", ["c", "s", "e", "a", "t"], ["y"])]
    x = np.asarray(RNG.standard_normal((5, 3)))
    feeds = {"x": x, "s": np.array([0]), "e": np.array([5]), "a": np.array([0]), "t": np.array([2])}
    first = cfad.vjp(node_model(nodes, feeds, dims="symbolic"), wrt=["x"]).proto()
    first.graph.node.append(helper.make_node("Identity", ["x_grad"], ["slope"]))
    del first.graph.output[:]
    first.graph.output.append(helper.make_tensor_value_info("slope", DOUBLE, [None, None]))
    inputs = {**feeds, "y_grad": np.asarray(RNG.standard_normal((3, 3)))}
    expected = np.zeros((5, 3))
    expected[::2] = 3 * x[::2] ** 2 * inputs["y_grad"]
    np.testing.assert_allclose(run_ort(first, inputs)["slope"], expected)
    first.graph.node[-2].name = "slope"
    first.graph.node[-2].output[0] = first.graph.node[-1].input[0] = "slope_inner"
    assert_vjp(first, inputs, wrt=["x", "y_grad"], rtol=1e-5)


@each_form(CASES, ("static", "symbolic"))
def test_second_order(case: Case, form: str) -> None:
    check_second(case, form)
