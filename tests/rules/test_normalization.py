"""Rules of rules/normalization.py and rules/batch_normalization.py against central differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, FLOAT, assert_vjp, node_model, run_ort, run_reference
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(43)
# ONNX Runtime 1.32 has no float64 kernel on the CPU for these.
NO_DOUBLE = frozenset(("InstanceNormalization",))
# The function bodies of these compute in float32, whatever the type.
ROUNDED: dict[str, Any] = {"step": 1e-3, "rtol": 2e-4, "atol": 1e-4}
THREE = {"y": DOUBLE, "mean": FLOAT, "inverse": FLOAT}


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def positive(*shape: int) -> np.ndarray:
    return np.asarray(RNG.uniform(0.5, 2, shape))


def runner_of(case: Case) -> str:
    return "reference" if case.node.op_type in NO_DOUBLE else "ort"


def is_current(case: Case) -> bool:
    """Whether the checker knows the operator: it refuses the deprecated GroupNormalization of opset 18."""
    return case.opset != 18


def tolerance_of(case: Case) -> dict[str, Any]:
    return ROUNDED if case.node.op_type in ("GroupNormalization", "RMSNormalization") or case.outputs == THREE else {}


LAYERS = [
    *(case(f"axis{axis}", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(*shape), "b": normal(*shape)},
           axis=axis, needs_rank=axis >= 0)
      for axis, shape in ((-1, (4,)), (-2, (3, 4)), (1, (3, 4)), (0, (2, 3, 4)))),
    case("no-bias", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(4)}, epsilon=0.1),
    case("scale-stretched", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(1, 4), "b": normal(3, 1)},
         axis=-2, forms=("static",)),
    case("statistics", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(4)}, outputs=THREE),
    case("statistics-only", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(4)}, outputs=THREE,
         seeded=("mean", "inverse")),
    case("inverse-only", "LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(4)}, outputs=THREE,
         seeded=("inverse",)),
]  # fmt: skip
ROOTS = [
    case(f"rms-axis{axis}", "RMSNormalization", {"x": normal(2, 3, 4), "scale": normal(*shape)}, axis=axis, opset=23,
         needs_rank=axis >= 0, epsilon=0.05)
    for axis, shape in ((-1, (4,)), (-2, (3, 4)), (1, (3, 4)), (0, (2, 3, 4)))
]  # fmt: skip
CHANNELS = [
    *(case(f"group{groups}-{len(shape)}d-opset{opset}", "GroupNormalization",
           {"x": normal(*shape), **{name: normal(4 if opset == 21 else groups) for name in ("scale", "bias")}},
           num_groups=groups, opset=opset, epsilon=0.01)
      for groups in (1, 2, 4) for shape in ((2, 4, 5), (2, 4, 2, 3)) for opset in (18, 21)),
    *(case(f"instance-{len(shape)}d", "InstanceNormalization",
           {"x": normal(*shape), "scale": normal(3), "b": normal(3)}, needs_rank=True, epsilon=0.01)
      for shape in ((2, 3, 5), (2, 3, 2, 4), (1, 3, 2, 2, 2))),
]  # fmt: skip
VECTORS = [
    case(f"l{p}-axis{axis}", "LpNormalization", {"x": positive(2, 3, 4) * np.where(RNG.random((2, 3, 4)) < 0.5, -1, 1)},
         p=p, axis=axis)
    for p in (1, 2) for axis in (-1, 0, 1)
]  # fmt: skip


def batch(*shape: int, training: int = 0, seeded: tuple[str, ...] | None = None, **attributes: Any) -> Case:
    names = ("scale", "B", "input_mean", "input_var")
    floats = {"x": normal(*shape), **{name: positive(shape[1]) for name in names}}
    outputs = {"y": DOUBLE, **({"running_mean": DOUBLE, "running_var": DOUBLE} if training else {})}
    name = f"{len(shape)}d-training{training}{'-'.join(seeded or ())}"
    return case(
        name,
        "BatchNormalization",
        floats,
        outputs=outputs,
        seeded=seeded,
        training_mode=training,
        needs_rank=True,
        **attributes,
    )


BATCHES = [
    *(batch(*shape, training=training) for shape in ((4, 3), (2, 3, 4), (2, 3, 2, 3)) for training in (0, 1)),
    batch(2, 3, 4, epsilon=0.2),
    batch(2, 3, 4, training=1, momentum=0.4, epsilon=0.2),
    batch(2, 3, 4, training=1, seeded=("running_var",)),
    batch(2, 3, 4, training=1, seeded=("y", "running_mean")),
]
ALL = [*LAYERS, *ROOTS, *CHANNELS, *VECTORS, *BATCHES]


@each_form(ALL)
def test_normalization(case: Case, form: str) -> None:
    validity: dict[str, Any] = {} if is_current(case) else {"check": False}
    check(case, form, runner=runner_of(case), **validity, **tolerance_of(case))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", [c for c in ALL if c.outputs != THREE], ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    assert_same_gradient(
        case.node,
        case.floats,
        wrt=list(case.floats),
        dtype=dtype,
        runner=runner_of(case),
        seeded=case.seeded,
        opset=case.opset,
        dims="symbolic",
        check=is_current(case),
        tolerance=1e-4 if dtype is np.float32 else 2e-2,
    )


@pytest.mark.parametrize("case", [c for c in ALL if c.outputs != THREE], ids=lambda case: case.name)
def test_second_order(case: Case) -> None:
    assert_second_order(
        case.node,
        case.floats,
        wrt=list(case.floats),
        outputs=case.outputs,
        seeded=case.seeded,
        runner=runner_of(case),
        opset=case.opset,
        check=is_current(case),
        **tolerance_of(case),
    )


@pytest.mark.parametrize("axes", [None, [0, 2], [1], [-1, 0]])
def test_mean_variance_normalization_which_has_float32_only(axes: list[int] | None) -> None:
    x = normal(2, 3, 4, 5).astype(np.float32)
    attributes: dict[str, Any] = {} if axes is None else {"axes": axes}
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], **attributes)
    # onnx cannot infer shapes through the function body where the axes are its default.
    assert_vjp(node, {"x": x}, dims="symbolic", check=axes is not None)
    seed = normal(*x.shape)
    emitted = cfad.vjp(node_model(node, {"x": x}), wrt=["x"]).proto()
    found = run_ort(emitted, {"x": x, "y_grad": seed.astype(np.float32)})["x_grad"]
    over = tuple(axes or (0, 2, 3))
    centred = x - x.mean(over, keepdims=True, dtype=np.float64)
    deviation = np.sqrt((centred**2).mean(over, keepdims=True))
    z = centred / deviation
    expected = (seed - seed.mean(over, keepdims=True) - z * (seed * z).mean(over, keepdims=True)) / deviation
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_constant_elements_have_a_mean_variance_derivative_without_nan() -> None:
    x = np.full((1, 1, 2, 2), 3.0, np.float32)
    emitted = cfad.vjp(
        node_model(helper.make_node("MeanVarianceNormalization", ["x"], ["y"]), {"x": x}), wrt=["x"]
    ).proto()
    assert np.isfinite(run_ort(emitted, {"x": x, "y_grad": np.ones_like(x)})["x_grad"]).all()


@pytest.mark.parametrize("p", [1, 2])
def test_the_zero_vector_keeps_its_place(p: int) -> None:
    x = np.asarray([[0.0, 0.0], [3.0, 4.0]])
    emitted = cfad.vjp(node_model(helper.make_node("LpNormalization", ["x"], ["y"], p=p), {"x": x}), wrt=["x"]).proto()
    found = run_ort(emitted, {"x": x, "y_grad": np.asarray([[1.0, 2.0]] * 2)})["x_grad"]
    np.testing.assert_array_equal(found[0], [0.0, 0.0])
    assert np.all(found[1] != 0)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_local_response(size: int) -> None:
    """In float32: the reference evaluator leaves out the last channel of each window."""
    torch = pytest.importorskip("torch")
    x, seed = normal(2, 6, 2, 3), normal(2, 6, 2, 3)
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.6, beta=0.75, bias=1.5)
    assert_vjp(node, {"x": x.astype(np.float32)}, dims="symbolic")
    point = torch.tensor(x, requires_grad=True)
    torch.nn.functional.local_response_norm(point, size, 0.6, 0.75, 1.5).backward(torch.tensor(seed))
    feeds = {"x": x.astype(np.float32)}
    emitted = cfad.vjp(node_model(node, feeds), wrt=["x"]).proto()
    found = run_ort(emitted, {**feeds, "y_grad": seed.astype(np.float32)})["x_grad"]
    np.testing.assert_allclose(found, point.grad.numpy(), atol=1e-5)


def test_local_response_in_windows_of_even_size() -> None:
    """ONNX Runtime refuses them, and what the reference evaluator gives for y is not read."""
    x, seed = normal(1, 5, 2, 2), normal(1, 5, 2, 2)

    def objective(point: np.ndarray) -> float:
        padded = np.pad(point**2, ((0, 0), (1, 2), (0, 0), (0, 0)))
        windows = sum(padded[:, k : k + 5] for k in range(4))
        return float(np.sum(seed * point / (1.5 + 0.9 / 4 * windows) ** 0.5))

    node = helper.make_node("LRN", ["x"], ["y"], size=4, alpha=0.9, beta=0.5, bias=1.5)
    emitted = cfad.vjp(node_model(node, {"x": x}), wrt=["x"]).proto()
    found = run_reference(emitted, {"x": x, "y_grad": seed})["x_grad"]
    for k in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[k] = 1e-5
        np.testing.assert_allclose(found[k], (objective(x + step) - objective(x - step)) / 2e-5, rtol=1e-4, atol=1e-7)


def test_half_precision_is_computed_in_single_precision() -> None:
    """Deviations of 300 have squares beyond the largest float16."""
    x = np.asarray([[-600.0, -300.0, 0.0, 900.0]], np.float16)
    feeds = {"x": x, "scale": np.ones(4, np.float16)}
    model = node_model(helper.make_node("LayerNormalization", ["x", "scale"], ["y"]), feeds)
    seed = np.asarray([[1000.0, 0.0, 0.0, 0.0]], np.float16)
    found = run_ort(cfad.vjp(model, wrt=["x"]).proto(), {**feeds, "y_grad": seed})["x_grad"]
    assert found.dtype == np.float16
    z = x / np.sqrt((x.astype(np.float64) ** 2).mean())
    expected = (seed - seed.mean() - z * (seed * z).mean()) / np.sqrt((x.astype(np.float64) ** 2).mean())
    np.testing.assert_allclose(found, expected, rtol=2e-3)
