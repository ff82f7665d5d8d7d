"""What every corpus model has to pass: differences, all optimisation levels of ONNX Runtime, equal bytes, float32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnx_cfad as cfad
from tests.corpus import CORPUS, Example
from tests.modes import MODE
from tests.oracle import assert_vjp

Array = np.ndarray[Any, Any]

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
SLOW = frozenset(
    ("loop_long", "fixed_point_of_a_fixed_point", "fixed_point_with_a_loop_and_a_branch_inside")
    + ("fixed_point_in_a_branch_of_a_scan", "fixed_point_in_each_step")
)
# No row of a symbolic length was ever stacked: without optimisations ONNX Runtime 1.32 shares buffers wrongly.
ONLY_OPTIMISED = frozenset(("loop_scan_output_zero_trips_symbolic_and_summed",))


def parameters(*groups: str) -> list[Any]:
    """The makers of the corpus ``groups`` as pytest parameters."""
    found: list[Any] = []
    for group in groups:
        for name, maker in CORPUS[group].items():
            marks = (pytest.mark.slow,) if name in SLOW else ()
            found.append(pytest.param(maker, id=name, marks=marks))
    return found


def assert_matches_differences(example: Example) -> None:
    """The gradient equals central differences in float64, by initializers too."""
    model, feeds = promoted(example)
    found = assert_vjp(model, feeds, wrt=list(example.wrt), outputs=example.outputs)
    if model is example.model or MODE.get() != "reverse":
        return
    own = run(emitted(example), {**example.feeds, **seeds(example)}, "ORT_ENABLE_ALL")
    same = run(emitted(example._replace(model=model, feeds=feeds)), {**feeds, **seeds(example)}, "ORT_ENABLE_ALL")
    assert own.keys() == found.keys()
    for name, value in own.items():
        np.testing.assert_allclose(value, same[name], rtol=1e-12, atol=1e-14, err_msg=name)


def assert_levels_agree(example: Example) -> None:
    """ONNX Runtime's optimiser changes neither the primal outputs nor the gradients, beyond rounding."""
    model, feeds = emitted(example), {**example.feeds, **seeds(example)}
    levels = LEVELS[example.model.graph.name in ONLY_OPTIMISED :]
    plain = run(model, feeds, levels[0])
    for level in levels[1:]:
        for name, value in run(model, feeds, level).items():
            np.testing.assert_allclose(value, plain[name], rtol=1e-11, atol=1e-13, err_msg=f"{name} at {level}")


def assert_float32_follows(maker: Any) -> None:
    """The float32 variant gives the float64 gradients to float32's accuracy."""
    wide, narrow = maker(), maker("float")
    expected = run(emitted(wide), {**wide.feeds, **seeds(wide)}, LEVELS[-1])
    found = run(emitted(narrow), {**narrow.feeds, **seeds(narrow)}, LEVELS[-1])
    for name in wide.wrt:
        gradient = found[f"{name}_grad"]
        assert gradient.dtype == (np.float32 if expected[f"{name}_grad"].dtype == np.float64 else gradient.dtype)
        scale = float(np.linalg.norm(expected[f"{name}_grad"])) if gradient.size else 0.0
        np.testing.assert_allclose(gradient, expected[f"{name}_grad"], rtol=2e-3, atol=1e-4 * (1 + scale), err_msg=name)


def emitted(example: Example) -> onnx.ModelProto:
    """The differentiated model."""
    return cfad.vjp(example.model, wrt=list(example.wrt), outputs=example.outputs).proto()


def emitted_bytes(example: Example) -> bytes:
    """The differentiated model as it would be written."""
    return emitted(example).SerializeToString(deterministic=True)


def seeds(example: Example) -> dict[str, Array]:
    """A random cotangent for each differentiated output, the same for all variants of an example."""
    generator = np.random.default_rng(17)
    primal = run(example.model, example.feeds, LEVELS[-1])
    names = example.outputs or [n for n, value in primal.items() if value.dtype.kind == "f"]
    return {f"{n}_grad": np.asarray(generator.standard_normal(primal[n].shape)).astype(primal[n].dtype) for n in names}


def run(model: onnx.ModelProto, feeds: dict[str, Array], level: str) -> dict[str, Array]:
    """The tensor outputs of ``model`` in ONNX Runtime at an optimisation level."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in model.graph.output]
    return dict(zip(names, map(np.asarray, session.run(names, feeds)), strict=True))


def promoted(example: Example) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with each initializer to differentiate by turned into an input, which differences can vary."""
    wanted = [name for name in example.wrt if name not in example.feeds]
    if not wanted:
        return example.model, example.feeds
    model, feeds = onnx.ModelProto(), dict(example.feeds)
    model.CopyFrom(example.model)
    for tensor in [t for t in model.graph.initializer if t.name in wanted]:
        feeds[tensor.name] = numpy_helper.to_array(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        model.graph.initializer.remove(tensor)
    return model, feeds


@functools.cache
def all_makers() -> dict[str, Any]:
    """Every corpus model by name."""
    return {name: maker for group in CORPUS.values() for name, maker in group.items()}
