# Claim: for a Loop of 200 iterations that takes one of two branches in each (H=128, B=16), forward and gradient
# together take at most 4x the CPU time of the forward run, and at most half of that of onnx-ad.
"""The gradient of a branch in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import recurrent
from gradients import eager as torch_eager
from gradients import onnx_ad, ours
from meter import Bench, Case, forward
from onnx import helper, numpy_helper

STEPS, WIDTH, BATCH = 200, 128, 16
WEIGHTS = ("h0", "W", "V", "b")


def eager(torch: Any, inputs: dict[str, Any]) -> Any:
    """The loss in PyTorch."""
    h = inputs["h0"]
    for x in inputs["xs"]:
        weight = "W" if h.mean() > 0 else "V"
        h = torch.tanh(h @ inputs[weight] + x + inputs["b"])
    return h.sum()


def main() -> None:
    bench = Bench("w4_if_in_loop")
    case = _case()
    systems = [
        forward(case),
        ours(case, "taped", plan="taped"),
        ours(case, "checkpointed", plan="checkpointed"),
        ours(case, "default"),
        onnx_ad(case),
        torch_eager("w4_if_in_loop"),
    ]
    measured = bench.measure(case, systems, at_most=60)
    bench.claim("times forward", measured["default"].ratio, at_most=4)
    if "onnx-ad" in measured:
        bench.claim(
            "CPU time in units of onnx-ad's", measured["default"].cpu_s / measured["onnx-ad"].cpu_s, at_most=0.5
        )
    bench.finish()


def _case() -> Case:
    """h_t+1 = tanh(h_t W + x_t + b) where the mean of h_t is positive, else the same with V."""
    state = [BATCH, WIDTH]

    def branch(weight: str) -> Any:
        nodes = [
            helper.make_node("MatMul", ["h", weight], [f"{weight}_product"]),
            helper.make_node("Add", [f"{weight}_product", "x"], [f"{weight}_sum"]),
            helper.make_node("Add", [f"{weight}_sum", "b"], [f"{weight}_before"]),
            helper.make_node("Tanh", [f"{weight}_before"], [f"{weight}_result"]),
        ]
        return helper.make_graph(nodes, f"branch_{weight}", [], [recurrent.tensor(f"{weight}_result", state)])

    body = [
        helper.make_node("Gather", ["xs", "i"], ["x"], axis=0),
        helper.make_node("ReduceMean", ["h"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["h_next"], then_branch=branch("W"), else_branch=branch("V")),
    ]
    sizes = {"h0": state, "xs": [STEPS, *state], "W": [WIDTH, WIDTH], "V": [WIDTH, WIDTH], "b": [WIDTH]}
    graph = helper.make_graph(
        [
            recurrent.loop(body, {"h": state}, "n", ["h0"], ["h_end"]),
            helper.make_node("ReduceSum", ["h_end"], ["loss"], keepdims=0),
        ],
        "if_in_loop",
        [recurrent.tensor(name, dims) for name, dims in sizes.items()],
        [recurrent.tensor("loss", [])],
        [numpy_helper.from_array(np.array(STEPS), "n"), numpy_helper.from_array(np.array(0, np.float32), "zero")],
    )
    return Case(f"N={STEPS}, H={WIDTH}, B={BATCH}", recurrent.model_of(graph), _feeds(), WEIGHTS)


def _feeds() -> dict[str, np.ndarray]:
    """Orthogonal weights and small inputs: both branches run, and the cotangent reaches the first step."""
    rng = np.random.default_rng(0)
    feeds = {
        "h0": 0.1 * rng.standard_normal((BATCH, WIDTH)),
        "xs": 0.01 * rng.standard_normal((STEPS, BATCH, WIDTH)),
        "W": np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0],
        "V": np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0],
        "b": np.zeros(WIDTH),
    }
    return {name: value.astype(np.float32) for name, value in feeds.items()}


if __name__ == "__main__":
    main()
