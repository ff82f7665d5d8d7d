"""W2: a recurrent network, h = tanh(h W + x_t U + b) over N steps, as a Scan and as a Loop, and in PyTorch.

W is orthogonal and the inputs shrink with N, so that h stays near sqrt(3/N): 1 - h^2 is then near 1 - 3/N, and the
cotangent of the last state reaches the first step. With an ordinary W it would be zero after some hundred steps, and
most of the work would be on zeros and denormal numbers.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from meter import Case
from onnx import TensorProto, helper, numpy_helper

Form = Literal["scan", "loop", "dynamic loop"]
Reads = Literal["row", "reversed row", "windows of 3"]
FORMS: tuple[Form, ...] = ("scan", "loop", "dynamic loop")
WEIGHTS = ("h0", "W", "U", "b")


def case(
    form: Form,
    steps: int,
    *,
    width: int = 256,
    batch: int = 16,
    inputs: int = 16,
    wrt: tuple[str, ...] = WEIGHTS,
    reads: Reads = "row",
) -> Case:
    """The network over ``steps`` iterations; the weights are graph inputs.

    Args:
        form: "scan", "loop" (the trip count is an initializer) or "dynamic loop" (it is an input). The Loops read x_t
            by Gather, as exporters write it.
        steps: N.
        width: H, the length of the state.
        batch: B.
        inputs: D, the length of x_t.
        wrt: What to differentiate by; "xs" is the whole sequence.
        reads: What an iteration of a Loop reads of the sequence: x_t, x_{N-1-t}, or the mean of x_t, x_{t+1}, x_{t+2}
            (N - 2 iterations).
    """
    model = _model(form, steps, width, batch, inputs, reads)
    name = f"{form}, N={steps:,}, H={width}, B={batch}" + (f", {reads}" if reads != "row" else "")
    feeds = _feeds(form, steps, width, batch, inputs)
    return Case(name, model, feeds, wrt)


def eager(torch: Any, inputs: dict[str, Any]) -> Any:
    """The loss in PyTorch."""
    h = inputs["h0"]
    for x in inputs["xs"]:
        h = torch.tanh(h @ inputs["W"] + x @ inputs["U"] + inputs["b"])
    return h.sum()


def _feeds(form: Form, steps: int, width: int, batch: int, inputs: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    orthogonal = np.linalg.qr(rng.standard_normal((width, width)))[0]
    size = np.sqrt(3.0 / steps)
    feeds = {
        "W": orthogonal,
        "U": rng.standard_normal((inputs, width)) / np.sqrt(inputs),
        "b": np.zeros(width),
        "h0": size * rng.standard_normal((batch, width)),
        "xs": rng.standard_normal((steps, batch, inputs), np.float32) * np.float32(4.0 / steps),
    }
    arrays = {name: value.astype(np.float32, copy=False) for name, value in feeds.items()}
    return {**arrays, "n": np.array(steps)} if form == "dynamic loop" else arrays


def _model(form: Form, steps: int, width: int, batch: int, inputs: int, reads: Reads) -> onnx.ModelProto:
    state = [batch, width]
    cell = [
        helper.make_node("MatMul", ["h", "W"], ["recurrent"]),
        helper.make_node("MatMul", ["x", "U"], ["driven"]),
        helper.make_node("Add", ["recurrent", "driven"], ["sum"]),
        helper.make_node("Add", ["sum", "b"], ["before"]),
        helper.make_node("Tanh", ["before"], ["h_next"]),
    ]
    sizes = {"h0": state, "xs": [steps, batch, inputs], "W": [width, width], "U": [inputs, width], "b": [width]}
    ports = [tensor(name, dims) for name, dims in sizes.items()]
    initializers: list[onnx.TensorProto] = []
    if form == "scan":
        body = helper.make_graph(
            cell, "body", [tensor("h", state), tensor("x", [batch, inputs])], [tensor("h_next", state)]
        )
        node = helper.make_node("Scan", ["h0", "xs"], ["h_end"], body=body, num_scan_inputs=1)
    else:
        node = loop([*_read(reads), *cell], {"h": state}, "n", ["h0"], ["h_end"])
        numbers = {"first": [0], "one": 1, "ones": [1], "threes": [3]}
        initializers += [numpy_helper.from_array(np.array(x), name) for name, x in numbers.items()]
        if form == "loop":
            trips = steps - 2 if reads == "windows of 3" else steps
            initializers.append(numpy_helper.from_array(np.array(trips), "n"))
        else:
            ports.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    nodes = [node, helper.make_node("ReduceSum", ["h_end"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "recurrent", ports, [tensor("loss", [])], initializers)
    return model_of(graph)


def _read(reads: Reads) -> list[onnx.NodeProto]:
    """The nodes of a Loop body that read what iteration i needs of xs."""
    if reads == "row":
        return [helper.make_node("Gather", ["xs", "i"], ["x"], axis=0)]
    if reads == "reversed row":
        return [
            helper.make_node("Sub", ["n", "one"], ["last"]),
            helper.make_node("Sub", ["last", "i"], ["place"]),
            helper.make_node("Gather", ["xs", "place"], ["x"], axis=0),
        ]
    return [
        helper.make_node("Unsqueeze", ["i", "first"], ["start"]),
        helper.make_node("Add", ["start", "threes"], ["end"]),
        helper.make_node("Slice", ["xs", "start", "end", "first"], ["window"]),
        helper.make_node("ReduceMean", ["window", "first"], ["x"], keepdims=0),
    ]


def tensor(name: str, dims: list[int]) -> onnx.ValueInfoProto:
    """A float tensor."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A checked model."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def loop(
    nodes: list[onnx.NodeProto],
    carries: dict[str, list[int]],
    trips: str,
    initial: list[str],
    results: list[str],
    *,
    number: str = "i",
    stacked: dict[str, list[int]] | None = None,
) -> onnx.NodeProto:
    """A Loop without a condition whose body gives ``<carry>_next`` for each carry, then the stacked values."""
    keep, kept = f"{number}_keep", f"{number}_kept"
    body = helper.make_graph(
        [*nodes, helper.make_node("Identity", [keep], [kept])],
        f"body_{number}",
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(keep, TensorProto.BOOL, []),
            *(tensor(name, dims) for name, dims in carries.items()),
        ],
        [
            helper.make_tensor_value_info(kept, TensorProto.BOOL, []),
            *(tensor(f"{name}_next", dims) for name, dims in carries.items()),
            *(tensor(name, dims) for name, dims in (stacked or {}).items()),
        ],
    )
    return helper.make_node("Loop", [trips, "", *initial], results, body=body)
