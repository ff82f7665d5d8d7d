"""Rules of rules/elementwise.py against central differences; at kinks and poles against the values promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_ort, run_reference
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(23)
# ONNX Runtime 1.32 has no float64 kernel on the CPU for these.
NO_DOUBLE = frozenset(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Erf", "Mean"))
# The reference evaluator computes these in float32.
ROUNDED: dict[str, Any] = {"Erf": {"step": 1e-3, "rtol": 1e-4}}


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def between(low: float, high: float, *shape: int) -> np.ndarray:
    return np.asarray(RNG.uniform(low, high, shape))


def runner_of(op_type: str) -> str:
    return "reference" if op_type in NO_DOUBLE else "ort"


DOMAINS = {
    "Abs": (-2, 2), "Acos": (-0.9, 0.9), "Acosh": (1.2, 3), "Asin": (-0.9, 0.9), "Asinh": (-3, 3), "Atan": (-3, 3),
    "Atanh": (-0.9, 0.9), "Cos": (-4, 4), "Cosh": (-2, 2), "Erf": (-2, 2), "Exp": (-2, 2), "Identity": (-2, 2),
    "Log": (0.3, 3), "Neg": (-2, 2), "Reciprocal": (0.5, 3), "Sin": (-4, 4), "Sinh": (-2, 2), "Sqrt": (0.3, 3),
    "Tan": (-1.2, 1.2), "Tanh": (-2, 2),
}  # fmt: skip
UNARY = [case(op_type, op_type, {"x": between(*domain, 2, 5)}) for op_type, domain in DOMAINS.items()]

A, B, ROW, COLUMN, ONE, CUBE = normal(2, 3), normal(2, 3), normal(3), normal(2, 1), normal(1), normal(4, 1, 3)
PAIRS = {
    "same": (A, B),
    "row": (A, ROW),
    "column": (COLUMN, A),
    "scalar": (A, normal()),
    "one": (ONE, A),
    "outer": (CUBE, A),
}
BINARY = [
    case(f"{op_type}-{name}", op_type, {"a": a, "b": b})
    for op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
    for name, (a, b) in PAIRS.items()
    if op_type != "Mean" or name in ("same", "row", "scalar")  # the reference evaluator adds into the first operand
]
POSITIVE = between(0.5, 2, 2, 3)
POWERS = [
    *(case(f"by-{e}", "Pow", {"x": POSITIVE, "e": np.asarray(e)}, forms=("static",)) for e in (0.5, -1.5, 2.0, 3.0)),
    case("row", "Pow", {"x": POSITIVE, "e": normal(3)}),
    case("column", "Pow", {"x": np.abs(COLUMN) + 0.5, "e": A}),
    *(
        case(f"integers-{dtype.__name__}", "Pow", {"x": A, "n": np.asarray([-1, 0, 3], dtype)})
        for dtype in (np.int32, np.int64)
    ),
    *(case(f"integer-{n}", "Pow", {"x": A, "n": np.asarray(n)}) for n in (-2, 0, 1, 2, 3)),
    case("integer-vector-of-one", "Pow", {"x": A, "n": np.asarray([[2]])}),
    case("float-exponent-of-other-type", "Pow", {"x": POSITIVE, "n": np.asarray([1, 2, 3], np.int32)}),
]
FORKS = [
    case("same", "Where", {"c": np.asarray([[True, False, True], [False, False, True]]), "a": A, "b": B}),
    case("broadcast", "Where", {"c": np.asarray([[True], [False]]), "a": CUBE, "b": ROW}),
    case("wider-condition", "Where", {"c": np.asarray([[True], [False]]), "a": ROW, "b": normal()}),
]
REMAINDERS = [
    case("fmod", "Mod", {"a": np.asarray([5.3, -5.3, 7.1, 0.4]), "b": np.asarray([2.0, 2.1, -3.0, 0.9])}, fmod=1),
    case("fmod-broadcast", "Mod", {"a": between(3, 9, 4, 1), "b": np.asarray([2.03, -1.71])}, fmod=1),
]
MANY = [
    case(f"{op_type}-{n}", op_type, {f"x{k}": normal(*((2, 3), (3,), (2, 1), ())[k]) for k in range(n)})
    for op_type in ("Max", "Min", "Sum", "Mean")
    for n in (1, 3, 4)
]
LOW, HIGH = np.asarray(-0.5), np.asarray(0.7)
CLIPS = [
    case("both", "Clip", {"x": normal(3, 4), "low": LOW, "high": HIGH}),
    case("low", "Clip", {"x": normal(3, 4), "low": LOW}),
    case("high", "Clip", {"x": normal(3, 4), "low": None, "high": HIGH}),
    case("none", "Clip", {"x": normal(3, 4)}),
    case("crossed", "Clip", {"x": normal(3, 4), "low": HIGH, "high": LOW}),
]


@each_form(UNARY)
def test_unary(case: Case, form: str) -> None:
    check(case, form, runner=runner_of(case.node.op_type), **ROUNDED.get(case.node.op_type, {}))


@each_form([*BINARY, *FORKS, *MANY])
def test_broadcasting(case: Case, form: str) -> None:
    check(case, form, runner=runner_of(case.node.op_type))


@each_form([*POWERS, *REMAINDERS])
def test_powers_and_remainders(case: Case, form: str) -> None:
    check(case, form)


@each_form(CLIPS)
def test_clip(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", UNARY, ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    assert_same_gradient(case.node, case.floats, wrt=["x"], dtype=dtype, runner=runner_of(case.node.op_type))


@pytest.mark.parametrize("case", [*BINARY, *MANY, *POWERS, *CLIPS, *REMAINDERS], ids=lambda case: case.name)
def test_single_precision(case: Case) -> None:
    feeds = {**case.floats, **case.integers}
    assert_same_gradient(case.node, feeds, wrt=list(case.floats), dtype=np.float32, runner=runner_of(case.node.op_type))


@pytest.mark.parametrize(
    "case",
    [*UNARY, *(c for c in BINARY if c.name.endswith(("row", "outer"))), *POWERS, *FORKS],
    ids=lambda case: f"{case.node.op_type}-{case.name}",
)
def test_second_order(case: Case) -> None:
    assert_second_order(
        case.node,
        case.floats,
        wrt=list(case.floats),
        constants=case.integers,
        dims="symbolic",
        runner=runner_of(case.node.op_type),
    )


def gradient(
    op_type: str, feeds: dict[str, Any], *, ct: Any = None, wrt: list[str] | None = None, **attributes: Any
) -> list[np.ndarray]:
    """The gradients of one node by its floating-point inputs, in float64."""
    arrays = {k: np.asarray(a) for k, a in feeds.items()}
    model = node_model(helper.make_node(op_type, list(feeds), ["y"], **attributes), arrays, outputs={"y": DOUBLE})
    wrt = wrt or [k for k, a in arrays.items() if a.dtype.kind == "f"]
    run = run_reference if op_type in NO_DOUBLE else run_ort
    seed = np.ones_like(run(model, arrays)["y"]) if ct is None else np.asarray(ct)
    found = run(cfad.vjp(model, wrt=wrt).proto(), {**arrays, "y_grad": seed})
    return [found[f"{name}_grad"] for name in wrt]


def test_abs_at_zero() -> None:
    np.testing.assert_array_equal(gradient("Abs", {"x": [-2.0, 0.0, 3.0]})[0], [-1.0, 0.0, 1.0])


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_ties_of_two_are_shared(op_type: str) -> None:
    for found in gradient(op_type, {"a": [1.0, 2.0], "b": [1.0, 2.0]}, ct=[4.0, 6.0]):
        np.testing.assert_array_equal(found, [2.0, 3.0])


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_ties_of_three_are_shared_among_the_tied(op_type: str) -> None:
    lost = -9.0 if op_type == "Max" else 9.0
    found = gradient(op_type, {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, lost]}, ct=[6.0, 6.0])
    np.testing.assert_array_equal(found, [[2.0, 3.0], [2.0, 3.0], [2.0, 0.0]])


def test_clip_passes_on_the_closed_interval() -> None:
    found = gradient("Clip", {"x": [-2.0, -1.0, 0.0, 1.0, 2.0], "low": -1.0, "high": 1.0})
    np.testing.assert_array_equal(found[0], [0.0, 1.0, 1.0, 1.0, 0.0])
    assert found[1:] == [1.0, 1.0]


@pytest.mark.parametrize("exponent", [[0.0], [0]], ids=["float", "integer"])
def test_zero_to_the_zero(exponent: list[float]) -> None:
    found = gradient("Pow", {"x": [0.0, 2.0], "e": exponent * 2})
    np.testing.assert_array_equal(found[0], [0.0, 0.0])
    if len(found) > 1:
        np.testing.assert_allclose(found[1], [0.0, np.log(2.0)])


def test_powers_of_zero_follow_torch() -> None:
    torch = pytest.importorskip("torch")
    exponents = [0.0, 0.5, 1.0, 2.0, -1.0]
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    e = torch.tensor(exponents, dtype=torch.float64, requires_grad=True)
    torch.pow(x, e).sum().backward()
    by_base, by_exponent = gradient("Pow", {"x": np.zeros(5), "e": np.asarray(exponents)})
    np.testing.assert_array_equal(by_base, x.grad.numpy())
    np.testing.assert_array_equal(by_exponent, e.grad.numpy())


def test_negative_base_with_integer_values_of_a_float_exponent() -> None:
    (found,) = gradient("Pow", {"x": [-2.0, -3.0], "e": [3.0, 2.0]}, wrt=["x"])
    np.testing.assert_allclose(found, [12.0, -6.0])


@pytest.mark.parametrize("op_type", ["Sqrt", "Log", "Reciprocal"])
def test_a_pole_is_infinite_where_it_is_active(op_type: str) -> None:
    assert np.isinf(gradient(op_type, {"x": [0.0]})[0][0])


@pytest.mark.parametrize("op_type", ["Sqrt", "Log", "Reciprocal", "Acosh", "Asin"])
def test_a_pole_that_where_cuts_off_gives_zero(op_type: str) -> None:
    pole = 1.0 if op_type in ("Acosh", "Asin") else 0.0
    feeds = {"x": np.asarray([pole, 1.5 if op_type == "Acosh" else 0.5])}
    nodes = [helper.make_node(op_type, ["x"], ["t"]), helper.make_node("Where", ["c", "t", "x"], ["y"])]
    model = node_model(nodes, feeds, constants={"c": np.asarray([False, True])}, outputs={"y": DOUBLE})
    run = run_reference if op_type in NO_DOUBLE else run_ort
    with np.errstate(all="ignore"):
        found = run(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": np.ones(2)})["x_grad"]
    assert found[0] == 1.0
    assert np.isfinite(found[1])


def test_large_arguments_do_not_overflow() -> None:
    x = np.asarray([200.0, -60000.0], np.float16)
    model = node_model(helper.make_node("Asinh", ["x"], ["y"]), {"x": x})
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": np.ones_like(x)})["x_grad"]
    np.testing.assert_allclose(found, 1 / np.abs(x.astype(np.float64)), rtol=1e-2)


@pytest.mark.parametrize("op_type", ["Floor", "Ceil", "Round", "Sign"])
def test_steps_pass_no_derivative(op_type: str) -> None:
    nodes = [helper.make_node(op_type, ["x"], ["t"]), helper.make_node("Mul", ["t", "x"], ["y"])]
    x = np.asarray([-1.4, 0.3, 2.6])
    model = node_model(nodes, {"x": x}, outputs={"y": DOUBLE})
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {"x": x, "y_grad": np.ones(3)})
    np.testing.assert_array_equal(found["x_grad"], found["y"] / x)


def test_mean_of_operands_that_stretch_each_other() -> None:
    """In float32, for which ONNX Runtime has the kernel, against the gradient of Sum, which is checked above."""
    feeds = {"a": CUBE.astype(np.float32), "b": A.astype(np.float32), "y_grad": np.ones((4, 2, 3), np.float32)}
    results: list[dict[str, np.ndarray]] = []
    for op_type in ("Mean", "Sum"):
        model = node_model(helper.make_node(op_type, ["a", "b"], ["y"]), {k: feeds[k] for k in "ab"}, dims="symbolic")
        results.append(run_ort(cfad.vjp(model, wrt=["a", "b"]).proto(), feeds))
    for name in ("a_grad", "b_grad"):
        np.testing.assert_allclose(results[0][name], results[1][name] / 2)


def test_one_value_on_both_sides() -> None:
    for op_type in ("Mul", "Div", "Pow", "Sub", "Max"):
        assert_vjp(helper.make_node(op_type, ["x", "x"], ["y"]), {"x": between(0.5, 2, 4)})
