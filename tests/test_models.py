"""Real exports, differentiated by inputs and parameters, against float64 autograd of the code exported.

Beside each ``NAME.onnx`` lies ``NAME.npz``: ``in_*`` and ``out_*`` by ONNX name, ``cot_<i>`` the seed of output i,
``grad_*`` by input, ``gradp_*`` by parameter. In ``models/`` a parameter carries the name of its initializer; the
reference models use PyTorch's names, under which the exporter may have renamed and transposed the initializer.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import onnx_cfad
from tests.execution import LEVELS, operators, relative_error, run_in_onnxruntime, run_in_reference
from tests.float64 import widen, widen_array

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = {"own": ROOT / "models", "reference": ROOT.parent / "shared" / "models"}
NAMES = {
    "own": ("cond_resnet", "equilibrium", "equilibrium_while", "filter", "gnmt_v2", "heat", "neural_ode"),
    "reference": (
        "alphafold_recycling",
        "cond_resnet",
        "deq_while_ts",
        "gnmt_teacher_loop",
        "heat2d_10k",
        "moe_token_loop_if",
        "mpc_rollout_scan",
        "nested_newton_if",
        "neural_ode_rk4",
        "rnn_data_dependent_len",
    ),
}
ROUNDED_ZERO = 1e-14  # the gradient by a bias under a softmax is zero but for rounding
TOLERANCE = {np.float32: 1e-4, np.float64: 1e-7}

# ONNX Runtime's CPU provider has no float64 kernel for these; the reference evaluator computes them.
NO_FLOAT64_KERNEL = frozenset(("Conv", "ConvTranspose", "InstanceNormalization", "LSTM"))

# Parameters of the reference models that are no initializer.
NO_INITIALIZER = {
    "cond_resnet": r"blocks\.\d\.1\.",  # batch normalisation, folded into the convolution before it
    "gnmt_teacher_loop": r"enc\.",  # LSTM weights, written as Constant nodes in ONNX's order of the gates
}


@dataclasses.dataclass(frozen=True)
class Example:
    """A model with inputs, seeds and reference gradients, by ONNX name except where said."""

    group: str
    path: pathlib.Path
    model: ModelProto
    feeds: dict[str, np.ndarray]
    seeds: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    parameter_gradients: dict[str, np.ndarray]  # in the reference models by PyTorch name

    def candidates(self) -> list[str]:
        """The initializers that may be a parameter: by name, or by a parameter's shape, transposed or not."""
        if self.group == "own":
            return list(self.parameter_gradients)
        shapes = {shape for array in self.parameter_gradients.values() for shape in (array.shape, array.shape[::-1])}
        tensors = self.model.graph.initializer
        return [t.name for t in tensors if t.data_type == TensorProto.FLOAT and tuple(t.dims) in shapes]


@functools.cache
def load(group: str, name: str) -> Example:
    path = FOLDERS[group] / f"{name}.onnx"
    model = onnx.load(path)
    with np.load(path.with_suffix(".npz")) as stored:
        arrays = {key: stored[key] for key in stored.files}
    inputs = {value.name: arrays[f"in_{value.name}"] for value in model.graph.input}
    feeds = {key: arrays.get(f"in_{key}_for_grad", array) for key, array in inputs.items()}
    seeds = {value.name: arrays[f"cot_{i}"] for i, value in enumerate(model.graph.output) if f"cot_{i}" in arrays}
    return Example(group, path, model, feeds, seeds, _named(arrays, "grad_"), _named(arrays, "gradp_"))


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}


def example_parameters(*, float64: bool = False) -> list[object]:
    """Every example; those that take long are marked."""
    found: list[object] = []
    for group, names in NAMES.items():
        absent = pytest.mark.skipif(not FOLDERS[group].is_dir(), reason=f"the folder of {group} models is absent")
        for name in names:
            slow = (pytest.mark.slow,) if float64 and name == "heat" else ()
            found.append(pytest.param(group, name, marks=(absent, *slow), id=f"{group}-{name}"))
    return found


@functools.cache
def differentiate(group: str, name: str) -> ModelProto:
    example = load(group, name)
    wrt = [*example.gradients, *example.candidates()]
    return onnx_cfad.vjp(example.path, wrt=wrt, outputs=list(example.seeds)).proto()


def float32_feeds(example: Example) -> dict[str, np.ndarray]:
    """The inputs and the seeds."""
    return example.feeds | {f"{key}_grad": array.astype(np.float32) for key, array in example.seeds.items()}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("group", "name"), example_parameters())
def test_float32_gradient_matches_autograd(group: str, name: str, level: str) -> None:
    example = load(group, name)
    results = run_in_onnxruntime(differentiate(group, name), float32_feeds(example), level)
    check_gradients(example, results, TOLERANCE[np.float32])


@pytest.mark.parametrize(("group", "name"), example_parameters())
def test_primal_outputs_are_bit_equal(group: str, name: str) -> None:
    example = load(group, name)
    results = run_in_onnxruntime(differentiate(group, name), float32_feeds(example))
    for key, expected in run_in_onnxruntime(example.model, example.feeds).items():
        assert results[key].dtype == expected.dtype
        assert np.array_equal(results[key], expected, equal_nan=True), f"output '{key}' is not what the model gives"


@pytest.mark.parametrize(("group", "name"), example_parameters())
def test_emitted_model_passes_the_full_check(group: str, name: str) -> None:
    model = differentiate(group, name)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


@pytest.mark.parametrize(("group", "name"), example_parameters())
def test_emitted_bytes_are_deterministic(group: str, name: str) -> None:
    example = load(group, name)
    again = onnx_cfad.vjp(example.path, wrt=[*example.gradients, *example.candidates()], outputs=list(example.seeds))
    assert again.proto().SerializeToString() == differentiate(group, name).SerializeToString()


@pytest.mark.parametrize(("group", "name"), example_parameters(float64=True))
def test_float64_gradient_matches_autograd(group: str, name: str) -> None:
    example = load(group, name)
    seeds = {f"{key}_grad": array for key, array in example.seeds.items()}
    feeds = {key: widen_array(array) for key, array in example.feeds.items()}
    wrt = [*example.gradients, *example.candidates()]
    gradient = onnx_cfad.vjp(widen(example.model), wrt=wrt, outputs=list(example.seeds)).proto()
    run = run_in_reference if operators(gradient) & NO_FLOAT64_KERNEL else run_in_onnxruntime
    check_gradients(example, run(gradient, feeds | seeds), TOLERANCE[np.float64])


def check_gradients(example: Example, results: Mapping[str, np.ndarray], tolerance: float) -> None:
    """Compares every reference gradient with the output that must hold it."""
    for key, expected in example.gradients.items():
        check_gradient(f"input '{key}'", results[f"{key}_grad"], expected, tolerance)
    found = {key: results[f"{key}_grad"] for key in example.candidates()}
    matches = match_parameters(example.parameter_gradients, found, tolerance)
    lacking = NO_INITIALIZER.get(example.path.stem, "(?!)") if example.group == "reference" else "(?!)"
    for key in example.parameter_gradients.keys() - matches.keys():
        assert re.match(lacking, key), f"no initializer has the gradient by parameter '{key}'"


def check_gradient(what: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Compares two gradients; one that is exactly zero, because a branch cut it off, must be found so."""
    assert found.shape == expected.shape
    if not expected.any():
        assert not found.any(), f"gradient by {what}: must be exactly zero"
    elif np.linalg.norm(expected) < ROUNDED_ZERO:
        assert np.linalg.norm(found) <= tolerance, f"gradient by {what}: must vanish"
    else:
        error = relative_error(found, expected)
        assert error <= tolerance, f"gradient by {what}: relative error {error:.2e}"


def match_parameters(
    expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], tolerance: float
) -> dict[str, str]:
    """Which initializer each parameter is: that of its name, else the only unnamed one with its gradient.

    Raises:
        AssertionError: A gradient is wrong under its own name, or two initializers have a parameter's gradient.
    """
    matches: dict[str, str] = {}
    for name, array in expected.items():
        if name in found:
            check_gradient(f"parameter '{name}'", found[name], array, tolerance)
            matches[name] = name
            continue
        unnamed = {key: value for key, value in found.items() if key not in expected}
        fitting = [key for key, value in unnamed.items() if _fits(value, array, tolerance)]
        assert len(fitting) <= 1, f"initializers {fitting} all have the gradient by parameter '{name}'"
        if fitting:
            matches[name] = fitting[0]
    assert len(set(matches.values())) == len(matches), f"one initializer stands for two parameters: {matches}"
    return matches


def _fits(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Whether two gradients are equal up to transposition."""
    forms = [array for array in (found, found.T) if array.shape == expected.shape]
    return any(relative_error(form, expected) <= tolerance for form in forms)
