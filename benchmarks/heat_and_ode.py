# Claim: for the heat equation over 10,000 steps and a neural ODE over 40 Runge-Kutta steps, as PyTorch exported
# them (models/), forward and gradient together take at most 4x the CPU time of the forward run by the default plan;
# for the heat equation, checkpointed, what the gradient needs beyond the forward run is at least 90 % less than
# with the full tape, at no more than 1.5x its time. The gradients agree with PyTorch's in float64 to 1e-3
# (relative).
"""Time and memory of the gradients of two exported models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from gradients import onnx_ad, ours
from meter import Bench, Case, Measured, forward
from onnx import TensorProto, helper, numpy_helper

MODELS = Path(__file__).parent.parent / "models"


def main() -> None:
    bench = Bench("heat_and_ode")
    for name in ("heat", "neural_ode"):
        case = case_of(name)
        systems = [
            forward(case),
            ours(case, "default"),
            ours(case, "taped", plan="taped"),
            ours(case, "checkpointed", plan="checkpointed"),
            onnx_ad(case),
        ]
        measured = bench.measure(case, systems, at_most=20)
        bench.claim(f"{name}: times forward", measured["default"].ratio, at_most=4)
        bench.claim(f"{name}: relative difference from PyTorch", _difference(name, measured["default"]), at_most=1e-3)
        if name == "heat":
            _memory(bench, measured)
    bench.finish()


def _memory(bench: Bench, measured: dict[str, Measured]) -> None:
    taped, checkpointed, own = (measured[name] for name in ("taped", "checkpointed", "forward"))
    saved = 1 - max(checkpointed.beyond - own.growth, 0) / (taped.beyond - own.growth)
    bench.claim("heat: part of the tape's memory that checkpoints save", saved, at_least=0.9)
    ratio = checkpointed.cpu_s / taped.cpu_s
    bench.claim("heat: time checkpointed, in units of the full tape's", ratio, at_most=1.5)


def case_of(name: str) -> Case:
    """The exported model with the loss sum(output * seed), its parameters as graph inputs (for onnx-ad)."""
    model = onnx.load(MODELS / f"{name}.onnx")
    graph = model.graph
    with np.load(MODELS / f"{name}.npz") as arrays:
        stored = dict(arrays)
    feeds = {port.name: stored[f"in_{port.name}"] for port in graph.input}
    wrt = [key.removeprefix("grad_") for key in stored if key.startswith("grad_")]
    for tensor in [t for t in graph.initializer if f"gradp_{t.name}" in stored]:
        graph.initializer.remove(tensor)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        feeds[tensor.name] = numpy_helper.to_array(tensor)
        wrt.append(tensor.name)
    terms: list[str] = []
    for i, port in enumerate(graph.output):
        graph.initializer.append(numpy_helper.from_array(stored[f"cot_{i}"].astype(np.float32), f"seed_{i}"))
        graph.node.append(helper.make_node("Mul", [port.name, f"seed_{i}"], [f"weighted_{i}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"weighted_{i}"], [f"term_{i}"], keepdims=0))
        terms.append(f"term_{i}")
    graph.node.append(helper.make_node("Sum", terms, ["loss"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return Case(name, model, feeds, tuple(wrt))


def _difference(name: str, measured: Measured) -> float:
    """The largest relative difference (2-norm) of a gradient from the stored one."""
    with np.load(MODELS / f"{name}.npz") as stored, np.load(measured.outputs) as outputs:
        expected = {
            key.removeprefix("gradp_").removeprefix("grad_"): stored[key] for key in stored if key[:4] == "grad"
        }
        return max(
            float(np.linalg.norm(outputs[f"{key}_grad"] - value) / np.linalg.norm(value))
            for key, value in expected.items()
        )


if __name__ == "__main__":
    main()
