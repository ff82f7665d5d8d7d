"""The rules of RNN, GRU and LSTM against central differences of the operators written out in NumPy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.execution import run_in_onnxruntime, run_in_reference
from tests.oracle import FLOAT, check_emitted, node_model
from tests.rules.recurrent_steps import FUNCTIONS, run

Array = np.ndarray[Any, Any]
T, N, I, H = 4, 3, 3, 2  # noqa: E741 - the letters of the documentation
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS = {"RNN": "x w r b lens h", "GRU": "x w r b lens h", "LSTM": "x w r b lens h c p"}
OUTPUTS = {"RNN": ["y", "y_h"], "GRU": ["y", "y_h"], "LSTM": ["y", "y_h", "y_c"]}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """A recurrent node: which optional inputs it has, its lengths and its attributes."""

    op_type: str
    optional: str = "bh"
    lens: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outputs: str = "y y_h y_c"
    scale: float = 0.8
    steps: int = T

    def feeds(self) -> dict[str, Array]:
        rng = np.random.default_rng(7)
        d, g = DIRECTIONS[self.attributes.get("direction", "forward")], GATES[self.op_type]
        shapes = {
            "x": (self.steps, N, I), "w": (d, g * H, I), "r": (d, g * H, H), "b": (d, 2 * g * H), "h": (d, N, H),
            "c": (d, N, H), "p": (d, 3 * H),
        }  # fmt: skip
        arrays = {name: rng.standard_normal(shape) * self.scale for name, shape in shapes.items()}
        feeds = {name: arrays[name] for name in ("x", "w", "r", *self.optional)}
        return feeds if self.lens is None else {**feeds, "lens": np.asarray(self.lens, np.int32)}

    def node(self) -> onnx.NodeProto:
        feeds = self.feeds()
        inputs = [name if name in feeds else "" for name in INPUTS[self.op_type].split()]
        outputs = [name if name in self.outputs.split() else "" for name in OUTPUTS[self.op_type]]
        while not outputs[-1]:
            outputs.pop()
        return helper.make_node(self.op_type, inputs, outputs, hidden_size=H, **self.attributes)


def check(case: Recurrent, *, dims: str = "static", runner: Any = run_in_onnxruntime) -> onnx.ModelProto:
    """Asserts that the emitted gradient equals differences of the steps in NumPy, for every input."""
    dtype = np.float32 if runner is run_in_onnxruntime else np.float64
    feeds, wide, names = _inputs(case, dtype)
    model = node_model(case.node(), feeds, dims=dims)
    emitted = cfad.vjp(model, wrt=names).proto()
    check_emitted(emitted)
    rng = np.random.default_rng(3)
    primal = dict(zip(OUTPUTS[case.op_type], run(case.op_type, wide, case.attributes), strict=True))
    seeded = [name for name in case.outputs.split() if name in primal]
    seeds = {name: rng.standard_normal(primal[name].shape) for name in seeded}
    found = runner(emitted, {**feeds, **{f"{n}_grad": s.astype(dtype) for n, s in seeds.items()}})
    for name in seeded:
        np.testing.assert_allclose(found[name], primal[name], atol=1e-5)

    def value(point: Mapping[str, Array]) -> float:
        outputs = dict(zip(OUTPUTS[case.op_type], run(case.op_type, point, case.attributes), strict=True))
        return float(sum(np.sum(seed * outputs[name]) for name, seed in seeds.items()))

    for name in names:
        gradient = found[f"{name}_grad"]
        assert gradient.shape == feeds[name].shape
        for _ in range(3):
            direction = rng.standard_normal(wide[name].shape)
            step = 1e-6 * direction
            numeric = (value({**wide, name: wide[name] + step}) - value({**wide, name: wide[name] - step})) / 2e-6
            exact = float(np.sum(gradient * direction))
            scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
            assert abs(numeric - exact) <= 1e-5 + 2e-5 * scale, f"{name}: differences {numeric}, gradient {exact}"
    return emitted


def _inputs(case: Recurrent, dtype: Any) -> tuple[dict[str, Array], dict[str, Array], list[str]]:
    feeds = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in case.feeds().items()}
    wide = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in feeds.items()}
    return feeds, wide, [name for name in feeds if name != "lens"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lens", [None, (4, 2, 1), (2, 4, 0)], ids=["full", "lens", "empty"])
@pytest.mark.parametrize(
    ("op_type", "optional", "more"),
    [
        ("RNN", "bh", {}),
        ("RNN", "", {"clip": 0.4}),
        ("GRU", "bh", {}),
        ("GRU", "bh", {"linear_before_reset": 1}),
        ("GRU", "", {"clip": 0.6}),
        ("GRU", "b", {"linear_before_reset": 1, "clip": 0.6}),
        ("LSTM", "bhc", {}),
        ("LSTM", "bhcp", {}),
        ("LSTM", "c", {"clip": 0.5}),
        ("LSTM", "hcp", {"input_forget": 1}),
        ("LSTM", "bhc", {"input_forget": 1, "clip": 0.7}),
    ],
)
def test_directions_lengths_and_options(
    op_type: str, optional: str, more: dict[str, Any], lens: tuple[int, ...] | None, direction: str
) -> None:
    if op_type == "RNN" and lens is not None and 0 in lens:
        pytest.skip("ONNX Runtime's RNN reads in front of its buffer where a sequence has no steps")
    check(Recurrent(op_type, optional, lens, {"direction": direction, **more}))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lens", [None, (1, 0, 1)], ids=["full", "empty"])
@pytest.mark.parametrize(
    ("op_type", "optional", "more"),
    [
        ("RNN", "bh", {}),
        ("GRU", "bh", {}),
        ("GRU", "", {"linear_before_reset": 1}),
        ("LSTM", "bhc", {}),
        ("LSTM", "bhcp", {}),
        ("LSTM", "", {"clip": 0.5, "input_forget": 1}),
    ],
)
def test_single_step(
    op_type: str, optional: str, more: Mapping[str, Any], lens: tuple[int, ...] | None, direction: str
) -> None:
    emitted = check(Recurrent(op_type, optional, lens, {"direction": direction, **more}, steps=1))
    assert lens is not None or not any(node.op_type == "Scan" for node in emitted.graph.node), "a step needs no loop"


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_activations(op_type: str, name: str) -> None:
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op_type]
    names = [name] * count
    if op_type == "LSTM":
        names[1] = "Tanh"  # gates that are all unbounded amplify rounding
    if op_type == "GRU" and name in ("Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Softplus", "Affine"):
        names[0] = "Sigmoid" if name == "Softplus" else "HardSigmoid"
    parameters = {
        "activation_alpha": [0.3 + 0.1 * k for k in range(count)],
        "activation_beta": [0.4 - 0.1 * k for k in range(count)],
    }
    check(
        Recurrent(op_type, "bhc" if op_type == "LSTM" else "bh", None, {"activations": names, **parameters}, scale=0.5)
    )


def test_each_direction_has_its_own_activations() -> None:
    names = ["HardSigmoid", "Softsign", "Sigmoid", "Elu"]
    parameters = {"activation_alpha": [0.3, 0.7], "activation_beta": [0.45]}
    check(Recurrent("GRU", "b", None, {"direction": "bidirectional", "activations": names, **parameters}))


@pytest.mark.parametrize("outputs", ["y", "y_h", "y_c", "y_h y_c", "y y_c"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_absent_outputs(outputs: str, direction: str) -> None:
    check(Recurrent("LSTM", "bhc", (4, 2, 3), {"direction": direction}, outputs))


@pytest.mark.parametrize("op_type", ["RNN", "GRU"])
@pytest.mark.parametrize("outputs", ["y", "y_h"])
def test_one_output(op_type: str, outputs: str) -> None:
    check(Recurrent(op_type, "b", None, {"direction": "bidirectional"}, outputs))


@pytest.mark.parametrize("op_type", GATES)
def test_symbolic_dimensions(op_type: str) -> None:
    check(Recurrent(op_type, "", (1, 4, 3), {"direction": "bidirectional"}), dims="symbolic")


@pytest.mark.parametrize(("op_type", "direction"), [*itertools.product(GATES, DIRECTIONS)])
def test_float64_in_the_reference_evaluator(op_type: str, direction: str) -> None:
    check(
        Recurrent(op_type, "bhcp" if op_type == "LSTM" else "bh", None, {"direction": direction}),
        runner=run_in_reference,
    )


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first_equals_time_first(op_type: str) -> None:
    """Layout 1, which ONNX Runtime lacks, in the reference evaluator."""
    case = Recurrent(op_type, "bhc" if op_type == "LSTM" else "bh", None, {"direction": "bidirectional"})
    feeds, _, names = _inputs(case, np.float64)
    outputs = dict.fromkeys(OUTPUTS[op_type], onnx.TensorProto.DOUBLE)
    moved = {name: np.swapaxes(a, 0, 1) if name in "xhc" else a for name, a in feeds.items()}
    rng = np.random.default_rng(5)
    y = rng.standard_normal((T, 2, N, H))
    states = {f"{name}_grad": rng.standard_normal((2, N, H)) for name in OUTPUTS[op_type][1:]}
    found: list[dict[str, Array]] = []
    for layout in (0, 1):
        node = dataclasses.replace(case, attributes={"direction": "bidirectional", "layout": layout}).node()
        given = moved if layout else feeds
        seeds = {"y_grad": np.transpose(y, (2, 0, 1, 3)) if layout else y}
        seeds.update({name: np.swapaxes(s, 0, 1) if layout else s for name, s in states.items()})
        emitted = cfad.vjp(node_model(node, given, outputs=outputs), wrt=names).proto()
        found.append(run_in_reference(emitted, {**given, **seeds}))
    for name in names:
        expected = found[0][f"{name}_grad"]
        actual = found[1][f"{name}_grad"]
        np.testing.assert_allclose(np.swapaxes(actual, 0, 1) if name in "xhc" else actual, expected, atol=1e-12)


def test_half_precision() -> None:
    case = Recurrent("LSTM", "bhc", None, {"direction": "bidirectional"})
    feeds, _, names = _inputs(case, np.float32)
    seeds = {
        f"{n}_grad": np.ones(s, np.float32) for n, s in (("y", (T, 2, N, H)), ("y_h", (2, N, H)), ("y_c", (2, N, H)))
    }
    single = run_in_onnxruntime(cfad.vjp(node_model(case.node(), feeds), wrt=names).proto(), {**feeds, **seeds})
    half = {name: a.astype(np.float16) for name, a in feeds.items()}
    emitted = cfad.vjp(node_model(case.node(), half), wrt=names).proto()
    found = run_in_onnxruntime(emitted, {**half, **{n: s.astype(np.float16) for n, s in seeds.items()}})
    for name in names:
        gradient, expected = found[f"{name}_grad"], single[f"{name}_grad"]
        assert gradient.dtype == np.float16
        assert np.linalg.norm(gradient.astype(np.float32) - expected) <= 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("op_type", GATES)
def test_a_weight_is_contracted_once(op_type: str) -> None:
    emitted = check(Recurrent(op_type, "bhc" if op_type == "LSTM" else "bh"))
    scans = [node for node in emitted.graph.node if node.op_type == "Scan"]
    assert len(scans) == (2 if op_type == "LSTM" else 1)
    for scan in scans:
        body = next(a.g for a in scan.attribute if a.name == "body")
        assert sum(node.op_type in ("MatMul", "Gemm") for node in body.node) <= (2 if op_type == "GRU" else 1)


def test_an_unknown_activation_is_refused() -> None:
    node = Recurrent("RNN", "", None, {"activations": ["Gelu"]}).node()
    feeds, _, _ = _inputs(Recurrent("RNN", ""), np.float32)
    with pytest.raises(cfad.UnsupportedOp, match="gelu.*not one of"):
        cfad.vjp(node_model(node, feeds, outputs={"y": FLOAT, "y_h": FLOAT}), wrt=["x"])


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
def test_sequence_of_no_steps(op_type: str, direction: str, dims: str) -> None:
    """ONNX Runtime makes the last states 0, so that every gradient is 0; it refuses a Scan of no steps."""
    lens = (0,) * N if op_type == "GRU" else None  # without lengths ONNX Runtime's GRU of no steps ends the process
    case = Recurrent(op_type, "bhcp" if op_type == "LSTM" else "bh", lens, {"direction": direction})
    feeds = {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in case.feeds().items()}
    feeds["x"] = np.zeros((0, N, I), np.float32)
    node = case.node()
    outputs = dict.fromkeys([name for name in node.output if name], FLOAT)
    model, names = node_model(node, feeds, outputs=outputs, dims=dims), [n for n in feeds if n != "lens"]
    d = DIRECTIONS[direction]
    seeds = {f"{o}_grad": np.ones((0, d, N, H) if o == "y" else (d, N, H), np.float32) for o in outputs}
    emitted = cfad.vjp(model, wrt=names).proto()
    check_emitted(emitted)
    found = run_in_onnxruntime(emitted, {**feeds, **seeds})
    for name in names:
        np.testing.assert_array_equal(found[f"{name}_grad"], np.zeros_like(feeds[name]))
    pushed = cfad.jvp(model, wrt=names).proto()
    tangents = {f"{name}_tangent": np.ones_like(feeds[name]) for name in names}
    last = run_in_onnxruntime(pushed, {**feeds, **tangents})["y_h_tangent"]
    np.testing.assert_array_equal(last, np.zeros((d, N, H), np.float32))


@pytest.mark.parametrize("op_type", GATES)
def test_number_of_steps_that_the_run_knows(op_type: str) -> None:
    check(
        Recurrent(op_type, "bhc" if op_type == "LSTM" else "bh", (4, 0, 3), {"direction": "reverse"}), dims="symbolic"
    )
