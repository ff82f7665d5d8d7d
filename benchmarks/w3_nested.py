# Claim: for a Loop of 30 iterations in a Loop of 30 (H=64, B=16), forward and gradient together take at most 4x the
# CPU time of the forward run, and at most half of that of onnx-ad.
"""The gradient of a loop in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import recurrent
from gradients import eager as torch_eager
from gradients import onnx_ad, ours
from meter import Bench, Case, forward
from onnx import helper, numpy_helper

OUTER, INNER = 30, 30
WIDTH, BATCH = 64, 16
WEIGHTS = ("h0", "W", "V", "b")


def eager(torch: Any, inputs: dict[str, Any]) -> Any:
    """The loss in PyTorch."""
    h = inputs["h0"]
    for x in inputs["xs"]:
        z = h
        for _ in range(INNER):
            z = torch.tanh(z @ inputs["W"] + x + inputs["b"])
        h = torch.tanh(z @ inputs["V"] + h)
    return h.sum()


def main() -> None:
    bench = Bench("w3_nested")
    case = _case()
    systems = [
        forward(case),
        ours(case, "taped", plan="taped"),
        ours(case, "checkpointed", plan="checkpointed"),
        ours(case, "default"),
        onnx_ad(case),
        torch_eager("w3_nested"),
    ]
    measured = bench.measure(case, systems, at_most=60)
    bench.claim("times forward", measured["default"].ratio, at_most=4)
    if "onnx-ad" in measured:
        bench.claim(
            "CPU time in units of onnx-ad's", measured["default"].cpu_s / measured["onnx-ad"].cpu_s, at_most=0.5
        )
    bench.finish()


def _case() -> Case:
    """z_k+1 = tanh(z_k W + x_t + b), z_0 = h_t, 30 times; h_t+1 = tanh(z V + h_t), 30 times."""
    state = [BATCH, WIDTH]
    inner = recurrent.loop(
        [
            helper.make_node("MatMul", ["z", "W"], ["zw"]),
            helper.make_node("Add", ["zw", "x"], ["zx"]),
            helper.make_node("Add", ["zx", "b"], ["zb"]),
            helper.make_node("Tanh", ["zb"], ["z_next"]),
        ],
        {"z": state},
        "inner",
        ["h"],
        ["z_end"],
        number="k",
    )
    outer = recurrent.loop(
        [
            helper.make_node("Gather", ["xs", "t"], ["x"], axis=0),
            inner,
            helper.make_node("MatMul", ["z_end", "V"], ["zv"]),
            helper.make_node("Add", ["zv", "h"], ["hv"]),
            helper.make_node("Tanh", ["hv"], ["h_next"]),
        ],
        {"h": state},
        "outer",
        ["h0"],
        ["h_end"],
        number="t",
    )
    sizes = {"h0": state, "xs": [OUTER, *state], "W": [WIDTH, WIDTH], "V": [WIDTH, WIDTH], "b": [WIDTH]}
    graph = helper.make_graph(
        [outer, helper.make_node("ReduceSum", ["h_end"], ["loss"], keepdims=0)],
        "nested",
        [recurrent.tensor(name, dims) for name, dims in sizes.items()],
        [recurrent.tensor("loss", [])],
        [numpy_helper.from_array(np.array(OUTER), "outer"), numpy_helper.from_array(np.array(INNER), "inner")],
    )
    return Case(f"{OUTER} x {INNER}, H={WIDTH}, B={BATCH}", recurrent.model_of(graph), _feeds(), WEIGHTS)


def _feeds() -> dict[str, np.ndarray]:
    """Orthogonal weights and small inputs, so that the cotangent reaches the first step."""
    rng = np.random.default_rng(0)
    feeds = {
        "h0": 0.05 * rng.standard_normal((BATCH, WIDTH)),
        "xs": 0.002 * rng.standard_normal((OUTER, BATCH, WIDTH)),
        "W": np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0],
        "V": 0.3 * np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0],
        "b": np.zeros(WIDTH),
    }
    return {name: value.astype(np.float32) for name, value in feeds.items()}


if __name__ == "__main__":
    main()
