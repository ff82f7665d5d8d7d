"""Rules of rules/losses.py against central differences, and against PyTorch where all elements are ignored."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, node_model, run_ort
from tests.rules.forms import Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(47)
CLASSES = 4
SHAPES = {"rows": (5,), "signal": (3, 2), "image": (2, 2, 3)}
LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def loss(op_type: str, shape: tuple[int, ...], name: str, **options: Any) -> Case:
    """A loss of random scores; ``weight`` and ``ignored`` among the options."""
    weight, ignored = options.pop("weight", False), options.pop("ignored", None)
    labels = RNG.integers(0, CLASSES, shape).astype(options.pop("dtype", np.int64))
    if ignored is not None:
        labels.reshape(-1)[::2] = ignored
        options["ignore_index"] = ignored
    inputs = {"x": normal(shape[0], CLASSES, *shape[1:]), "t": labels}
    if weight:
        inputs["w"] = np.asarray(RNG.uniform(0.5, 2, CLASSES))
    return case(name, op_type, inputs, needs_rank=True, **options)


CASES = [
    *(loss(op_type, (5,), f"{op_type}-int32", dtype=np.int32, ignored=1, weight=True) for op_type in LOSSES),
    *(loss(op_type, shape, f"{op_type}-{name}-{reduction}-weight{weight}-ignored{ignored}", reduction=reduction,
         weight=weight, ignored=ignored)
    for op_type, (name, shape), reduction, weight, ignored in itertools.product(
        LOSSES, SHAPES.items(), ("none", "sum", "mean"), (False, True), (None, -100, 2))
    if name != "signal" or ignored is None),
]  # fmt: skip
TWO = {"y": DOUBLE, "log_prob": DOUBLE}
WITH_LOG_PROB = [
    loss("SoftmaxCrossEntropyLoss", (2, 3), f"{'-'.join(seeded)}-{reduction}", reduction=reduction, outputs=TWO,
         seeded=seeded, weight=True, ignored=1)
    for reduction in ("none", "mean") for seeded in (("y", "log_prob"), ("y",), ("log_prob",))
]  # fmt: skip


@each_form(CASES, ("static", "computed"))
def test_loss(case: Case, form: str) -> None:
    check(case, form)


@each_form([c for c in CASES if "image" in c.name and "weightTrue" in c.name], ("symbolic", "unranked"))
def test_loss_of_unknown_shape(case: Case, form: str) -> None:
    check(case, form)


@each_form(WITH_LOG_PROB, ("static", "symbolic", "computed"))
def test_log_probabilities_as_second_output(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("case", [c for c in CASES if "image" in c.name], ids=lambda case: case.name)
def test_narrow_types(case: Case, dtype: type) -> None:
    build: dict[str, Any] = {"constants": case.integers, "dims": "symbolic"}
    assert_same_gradient(case.node, case.floats, wrt=list(case.floats), dtype=dtype, runner="ort", **build)


@pytest.mark.parametrize("case", [c for c in CASES if "rows" in c.name] + WITH_LOG_PROB, ids=lambda case: case.name)
def test_second_order(case: Case) -> None:
    assert_second_order(
        case.node,
        case.floats,
        wrt=list(case.floats),
        constants=case.integers,
        outputs=case.outputs,
        seeded=case.seeded,
    )


def gradients(op_type: str, x: np.ndarray, labels: np.ndarray, **attributes: Any) -> np.ndarray:
    model = node_model(helper.make_node(op_type, ["x", "t"], ["y"], **attributes), {"x": x}, constants={"t": labels})
    emitted = cfad.vjp(model, wrt=["x"]).proto()
    return run_ort(emitted, {"x": x, "y_grad": np.asarray(1, x.dtype)})["x_grad"]


@pytest.mark.parametrize("op_type", LOSSES)
def test_all_elements_ignored(op_type: str) -> None:
    torch = pytest.importorskip("torch")
    x, labels = normal(3, CLASSES), np.full(3, -100)
    point = torch.tensor(x, requires_grad=True)
    functional = torch.nn.functional
    function = functional.cross_entropy if op_type == "SoftmaxCrossEntropyLoss" else functional.nll_loss
    function(point, torch.tensor(labels)).backward()
    np.testing.assert_array_equal(gradients(op_type, x, labels, ignore_index=-100), point.grad.numpy())


def test_confident_scores_do_not_overflow() -> None:
    x = np.asarray([[1e4, -1e4, 0.0, 1.0], [-1e4, 1e4, 0.0, 1.0]], np.float32)
    found = gradients("SoftmaxCrossEntropyLoss", x, np.asarray([0, 0]))
    np.testing.assert_allclose(found, [[0.0, 0.0, 0.0, 0.0], [-0.5, 0.5, 0.0, 0.0]], atol=1e-6)


def test_half_precision_counts_in_single_precision() -> None:
    x = np.zeros((4096, 2), np.float16)
    found = gradients("NegativeLogLikelihoodLoss", x, np.zeros(4096, np.int64), ignore_index=7)
    np.testing.assert_array_equal(found[:, 0], np.full(4096, -1 / 4096))
