"""The reference of an exported model: float64 autograd of an eager twin, in arrays that carry ONNX names."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import torch
from torch import Tensor, nn

FOLDER = pathlib.Path(__file__).parent
LARGEST_DIFFERENCE = 2e-5  # of ONNX Runtime in float32 and the twin in float64, relative to the largest element


def write(
    name: str,
    model: onnx.ModelProto,
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Checks ``model`` against its eager twin and writes NAME.onnx and NAME.npz.

    Args:
        name: Stem of both files.
        model: What an exporter made of the module.
        module: The module whose float64 copy is the eager twin; it must not contain anything of the exporter's.
        inputs: One set of inputs, by ONNX name in the order of the module's arguments.
        extra: More arrays for the npz file.

    Raises:
        ValueError: The model and its twin disagree, or a parameter is not an initializer.
    """
    onnx.checker.check_model(model, full_check=True)
    initializers = _initializers_of(model, module)
    twin = copy.deepcopy(module).double()
    leaves = {
        key: value.double().requires_grad_() if value.is_floating_point() else value for key, value in inputs.items()
    }
    results = twin(*leaves.values())
    results = list(results) if isinstance(results, tuple) else [results]
    _compare_outputs(model, inputs, results)
    arrays = {f"in_{key}": value.numpy() for key, value in inputs.items()}
    for value, result in zip(model.graph.output, results, strict=True):
        arrays[f"out_{value.name}"] = result.detach().numpy()
    arrays |= _gradients(results, leaves, dict(twin.named_parameters()), initializers)
    onnx.save(model, FOLDER / f"{name}.onnx")
    np.savez_compressed(FOLDER / f"{name}.npz", allow_pickle=False, **arrays, **(extra or {}))
    for suffix in ("onnx", "npz"):
        print(f"{name}.{suffix}: {(FOLDER / f'{name}.{suffix}').stat().st_size} bytes")


def seed_of(output: int, shape: torch.Size) -> Tensor:
    """The cotangent that output number ``output`` is seeded with, float64, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(2024 + output), dtype=torch.float64)


def _gradients(
    results: list[Tensor],
    leaves: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    initializers: Mapping[str, onnx.TensorProto],
) -> dict[str, np.ndarray]:
    """Seeds every floating-point output, and gives seeds and gradients.

    The gradient by a parameter carries the name and the shape of its initializer (an exporter may have put axes of
    length 1 into it).
    """
    seeded = {i: result for i, result in enumerate(results) if result.requires_grad}
    seeds = {i: seed_of(i, result.shape) for i, result in seeded.items()}
    wrt = {f"grad_{key}": leaf for key, leaf in leaves.items() if leaf.requires_grad}
    wrt |= {f"gradp_{initializers[key].name}": parameter for key, parameter in parameters.items()}
    gradients = torch.autograd.grad(
        list(seeded.values()), list(wrt.values()), list(seeds.values()), allow_unused=True, materialize_grads=True
    )
    found = {key: gradient.numpy() for key, gradient in zip(wrt, gradients, strict=True)}
    for tensor in initializers.values():
        found[f"gradp_{tensor.name}"] = found[f"gradp_{tensor.name}"].reshape(tensor.dims)
    return {f"cot_{i}": seed.numpy() for i, seed in seeds.items()} | found


def _initializers_of(model: onnx.ModelProto, module: nn.Module) -> dict[str, onnx.TensorProto]:
    """The initializer that holds each parameter, found by comparing bytes."""
    held = {onnx.numpy_helper.to_array(tensor).tobytes(): tensor for tensor in model.graph.initializer}
    found: dict[str, onnx.TensorProto] = {}
    for name, parameter in module.named_parameters():
        data = parameter.detach().numpy().tobytes()
        if data not in held:
            raise ValueError(f"parameter '{name}' is not an initializer of the exported model")
        found[name] = held[data]
    return found


def _compare_outputs(model: onnx.ModelProto, inputs: Mapping[str, Tensor], results: list[Tensor]) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = session.run(None, {key: value.numpy() for key, value in inputs.items()})
    for value, computed, result in zip(model.graph.output, given, results, strict=True):
        found, expected = np.asarray(computed), result.detach().numpy()
        difference = np.abs(found - expected).max() / np.abs(expected).max()
        print(f"output '{value.name}': relative difference of ONNX Runtime and the twin {difference:.1e}")
        if found.shape != expected.shape or not difference <= LARGEST_DIFFERENCE:
            raise ValueError(f"output '{value.name}' of the exported model differs from its twin by {difference:.1e}")
