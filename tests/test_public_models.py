"""Models that people use, differentiated by their inputs and their weights, against differences of the originals.

silero-vad: branches nested four deep, weights as initializers or as Constant nodes inside branches, one file with
float16 weights. hey_jarvis: a second network that runs when the first is sure enough.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnx_cfad as cfad
from onnx_cfad.numeric.differences import Outcome
from tests.conformance.examples import nodes_of
from tests.execution import run_in_onnxruntime
from tests.float64 import widen, widen_array
from tests.oracle import check_emitted
from tests.public_models import openwakeword, silero_vad

pytestmark = [pytest.mark.download, pytest.mark.slow]

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
STATE = (2, 2, 128)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model file and inputs for it.

    Attributes:
        file: Its name.
        shapes: Of the floating-point inputs.
        rate: The sampling rate, where the model wants one.
        weights: How many weights it has.
        idle: How many of them only matter in a branch that does not run.
        loudness: The size of the inputs.
        seed: Of the inputs; that of hey_jarvis is one for which the first network is not sure.
        change: Of the outputs, that differences along the gradient are taken over.
        tolerance: Of these differences.
        float64: ONNX Runtime computes the model in float64 too; where it does not, differences are those of float32.
    """

    file: str
    shapes: Mapping[str, tuple[int, ...]]
    weights: int
    rate: int | None = None
    idle: int = 0
    loudness: float = 0.2
    seed: int = 7
    change: float = 3e-4
    tolerance: float = 2e-2
    float64: bool = False

    def feeds(self) -> Feeds:
        """Noise, by default as loud as speech."""
        rng = np.random.default_rng(self.seed)
        feeds: Feeds = {k: (self.loudness * rng.standard_normal(s)).astype(np.float32) for k, s in self.shapes.items()}
        return feeds if self.rate is None else {**feeds, "sr": np.asarray(self.rate)}


SUBJECTS = {
    "two-rates-16k": Subject("silero_vad.onnx", {"input": (2, 576), "state": STATE}, 30, rate=16000, idle=15),
    "two-rates-8k": Subject("silero_vad.onnx", {"input": (2, 288), "state": STATE}, 30, rate=8000, idle=15),
    "opset-15": Subject("silero_vad_16k_op15.onnx", {"input": (2, 576), "state": STATE}, 15, rate=16000),
    "sequence": Subject("silero_vad_16k_sequence.onnx", {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)}, 14),
    "float16": Subject("silero_vad_half.onnx", {"input": (2, 576), "state": STATE}, 15, change=3e-3, tolerance=0.1),
    "one-if-16k": Subject("silero_vad_op18_ifless.onnx", {"input": (2, 576), "state": STATE}, 30, rate=16000, idle=15),
    "one-if-8k": Subject("silero_vad_op18_ifless.onnx", {"input": (2, 288), "state": STATE}, 30, rate=8000, idle=15),
    "no-if": Subject("silero_vad_openvino_16k.onnx", {"input": (1, 576), "state": (2, 1, 128)}, 15),
}
JARVIS = Subject(
    "hey_jarvis_v0.1.onnx",
    {"x.1": (1, 16, 96)},
    20,
    idle=10,
    loudness=1.0,
    seed=0,
    float64=True,
    change=1e-6,
    tolerance=1e-3,
)
each_detector = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=list(SUBJECTS))


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where packages stay from one run to the next, or for this run when pytest keeps no cache."""
    store = getattr(request.config, "cache", None)
    return tmp_path_factory.getbasetemp() if store is None else pathlib.Path(store.mkdir("public-models"))


@pytest.fixture(scope="session")
def detectors(cache: pathlib.Path) -> pathlib.Path:
    return silero_vad(cache)


@pytest.fixture(scope="session")
def wake_words(cache: pathlib.Path) -> pathlib.Path:
    return openwakeword(cache)


def test_every_file_of_silero_vad_is_a_subject(detectors: pathlib.Path) -> None:
    assert {path.name for path in detectors.glob("*.onnx")} == {subject.file for subject in SUBJECTS.values()}


@each_detector
def test_silero_vad(subject: Subject, detectors: pathlib.Path) -> None:
    found = differentiated(detectors, subject)
    check_primal(found, levels=("ENABLE_ALL", "DISABLE_ALL"))
    check_in_float64(found)
    check_along_the_gradient(found, subject.feeds())


@pytest.mark.parametrize("name", ["two-rates", "one-if"])
def test_each_rate_has_its_own_weights(name: str, detectors: pathlib.Path) -> None:
    """A weight has a gradient at one of the two rates, and exactly zero at the other."""
    used: list[set[str]] = []
    for subject in (SUBJECTS[f"{name}-16k"], SUBJECTS[f"{name}-8k"]):
        found = differentiated(detectors, subject)
        gradients = found.gradients_at(subject.feeds())
        used.append({weight for weight in found.weights if gradients[weight].any()})
    assert not used[0] & used[1]
    assert len(used[0] | used[1]) == 30


def test_constant_inside_a_branch_by_its_path(detectors: pathlib.Path) -> None:
    every = differentiated(detectors, SUBJECTS["two-rates-16k"])
    name = "If_0_then_branch__Inline_0__decoder.rnn.weight_hh"
    named = dataclasses.replace(every, gradient=cfad.vjp(every.model, wrt=[f"main/If_0/then:{name}"]))
    (wrt,) = named.gradient.report.wrt
    assert wrt == f"main/If_0/then:{name}"
    feeds = every.subject.feeds()
    np.testing.assert_array_equal(named.gradients_at(feeds)[wrt], every.gradients_at(feeds)[wrt])


def test_hey_jarvis(wake_words: pathlib.Path) -> None:
    found = differentiated(wake_words, JARVIS)
    check_primal(found, levels=("DISABLE_ALL",))  # else ONNX Runtime fuses the original's normalisations
    check_in_float64(found)
    check_along_the_gradient(found, JARVIS.feeds())


def test_hey_jarvis_where_the_second_network_runs(wake_words: pathlib.Path) -> None:
    """Uphill along the gradient until the first network is sure; from then on the second one decides."""
    found = differentiated(wake_words, JARVIS)
    x = JARVIS.feeds()["x.1"]
    first = used_at(found, x)
    for _ in range(100):
        if not first & used_at(found, x):
            break
        slope = found.gradients_at({"x.1": x}, seed=1.0)["x.1"]
        x = x + (0.25 * slope / np.linalg.norm(slope)).astype(np.float32)
    assert len(first) == len(used_at(found, x) - first) == 10
    check_along_the_gradient(found, {"x.1": x})
    assert cfad.validate(found.model, found.gradient, {"x.1": x}, every_element_up_to=0).holds


def used_at(found: Differentiated, x: Array) -> set[str]:
    """The weights that the output depends on."""
    gradients = found.gradients_at({"x.1": x})
    return {name for name in found.weights if gradients[name].any()}


@dataclasses.dataclass(frozen=True)
class Differentiated:
    """A subject, its model and the gradient by its floating-point inputs and its weights."""

    subject: Subject
    model: ModelProto
    gradient: cfad.Gradient

    @property
    def weights(self) -> list[str]:
        return [name for name in self.gradient.report.wrt if name not in self.subject.shapes]

    def seeds(self, feeds: Feeds, seed: float | None = None) -> Feeds:
        """Cotangents of all outputs: one number everywhere, or random ones."""
        rng = np.random.default_rng(3)
        found: Feeds = {}
        for name, value in run_in_onnxruntime(self.model, feeds).items():
            values = rng.standard_normal(value.shape) if seed is None else np.full(value.shape, seed)
            found[name] = values.astype(value.dtype)
        return found

    def gradients_at(self, feeds: Feeds, seed: float | None = None) -> Feeds:
        """The gradients by wrt name."""
        seeds = {f"{name}_grad": array for name, array in self.seeds(feeds, seed).items()}
        found = run_in_onnxruntime(self.gradient.proto(), {**feeds, **seeds})
        return {name: found[f"{name}_grad"] for name in self.gradient.report.wrt}


def differentiated(folder: pathlib.Path, subject: Subject) -> Differentiated:
    model = onnx.load(folder / subject.file)
    gradient = cfad.vjp(model, wrt=[*subject.shapes, cfad.INITIALIZERS])
    check_emitted(gradient.proto())
    found = Differentiated(subject, model, gradient)
    assert len(found.weights) == subject.weights
    return found


def check_primal(found: Differentiated, levels: tuple[str, ...]) -> None:
    """The original's outputs come out bit for bit."""
    feeds = found.subject.feeds()
    seeds = {f"{name}_grad": array for name, array in found.seeds(feeds).items()}
    for level in levels:
        results = run_in_onnxruntime(found.gradient.proto(), {**feeds, **seeds}, level)
        for name, value in run_in_onnxruntime(found.model, feeds, level).items():
            np.testing.assert_array_equal(results[name], value, err_msg=f"{name} at {level}")


def check_in_float64(found: Differentiated) -> None:
    """Every gradient for itself, in random directions; those of idle weights are exactly zero."""
    validation = cfad.validate(found.model, found.gradient, found.subject.feeds(), every_element_up_to=0)
    assert validation.evaluator.startswith("float64"), str(validation)
    assert all(row.verdict is Outcome.HOLDS for row in validation.rows), str(validation)
    assert len(validation.vacuous) == found.subject.idle


def check_along_the_gradient(found: Differentiated, feeds: Feeds) -> None:
    """Differences in ONNX Runtime along the gradient: by each input, and by all weights that matter together."""
    gradients = found.gradients_at(feeds)
    for name in found.subject.shapes:
        check_direction(found, feeds, {name: gradients[name]})
    check_direction(found, feeds, {name: gradients[name] for name in found.weights if gradients[name].any()})


def check_direction(found: Differentiated, feeds: Feeds, gradients: Feeds) -> None:
    """Moves each value along its gradient in proportion to its size, so far that the outputs change a little."""
    subject, seeds = found.subject, found.seeds(feeds)
    model = widen(found.model) if subject.float64 else found.model
    feeds = {name: widen_array(array) for name, array in feeds.items()} if subject.float64 else feeds
    values = {**feeds, **weight_values(model, found.weights)}
    slopes = {name: array.astype(np.float64) for name, array in gradients.items()}
    moves = {
        name: slope * np.linalg.norm(values[name].astype(np.float64)) / np.linalg.norm(slope)
        for name, slope in slopes.items()
    }
    outputs = run_in_onnxruntime(model, feeds)
    change = subject.change * sum(float(np.abs(seeds[name] * output).sum()) for name, output in outputs.items())
    step = change / sum(float(np.sum(slopes[name] * moves[name])) for name in slopes)

    def value(sign: int) -> float:
        moved = {name: (values[name] + sign * step * m).astype(values[name].dtype) for name, m in moves.items()}
        changed = with_weights(model, {name: array for name, array in moved.items() if name not in feeds})
        results = run_in_onnxruntime(changed, {name: moved.get(name, array) for name, array in feeds.items()})
        return sum(float(np.sum(seeds[name] * result, dtype=np.float64)) for name, result in results.items())

    numeric = (value(1) - value(-1)) / 2
    assert numeric == pytest.approx(change, rel=subject.tolerance), f"along the gradient by {list(slopes)}"


def weight_values(model: ModelProto, names: list[str]) -> Feeds:
    """The weights by name, from every scope."""
    tensors = tensors_of(model)
    return {name: numpy_helper.to_array(of_author(name, tensors)) for name in names}


def with_weights(model: ModelProto, values: Feeds) -> ModelProto:
    """A copy of ``model`` with other weights."""
    copy = ModelProto()
    copy.CopyFrom(model)
    tensors = tensors_of(copy)
    for name, value in values.items():
        tensor = of_author(name, tensors)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return copy


def of_author(name: str, tensors: dict[str, TensorProto]) -> TensorProto:
    """The weight ``name`` or ``scope/path:name``, which may have colons of its own; no two scopes share one here."""
    ends = [0, *(k + 1 for k, character in enumerate(name) if character == ":")]
    return next(tensors[name[end:]] for end in ends if name[end:] in tensors)


def tensors_of(model: ModelProto) -> dict[str, TensorProto]:
    """The initializers, and the tensors of Constant nodes in every scope, by the name of the value."""
    made = [n for n in nodes_of(model.graph) if n.op_type == "Constant" and n.attribute[0].name == "value"]
    return {**{t.name: t for t in model.graph.initializer}, **{n.output[0]: n.attribute[0].t for n in made}}
