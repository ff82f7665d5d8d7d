"""W6: a translation network in the manner of GNMT v2, every LSTM layer written as a Loop, and the same in PyTorch.

Encoder: two LSTM layers, one Loop each, over S source steps. Decoder: one Loop over S target steps with two LSTM
layers; the first reads the target embedding and the last context, attention follows it at each step, the second
reads the first one's output and the context. Attention is additive as in GNMT v2, score = v tanh(keys + query), or a
scaled product, which keeps [B, S] instead of [B, S, H] at each step. The loss is a sum of the second layer's outputs
against given weights.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import onnx
import recurrent
from meter import Case
from onnx import helper, numpy_helper

Attention = Literal["additive", "product"]

_LAYERS = {"encoder_1": 1, "encoder_2": 1, "decoder_1": 2, "decoder_2": 2}  # inputs of length H that a layer reads
_ATTENTION = ("keys_w", "query_w", "score_v")


def case(attention: Attention, steps: int, *, width: int = 256, batch: int = 8) -> Case:
    """The network with S = ``steps``, H = ``width``, B = ``batch``; the weights are graph inputs."""
    feeds = _feeds(steps, width, batch)
    wrt = tuple(name for name in feeds if name not in {"source", "target", "loss_weights"})
    if attention == "product":
        feeds, wrt = {k: v for k, v in feeds.items() if k != "score_v"}, tuple(n for n in wrt if n != "score_v")
    graph = _graph(attention, steps, width, batch, feeds)
    return Case(f"{attention} attention, S={steps:,}, H={width}, B={batch}", recurrent.model_of(graph), feeds, wrt)


def eager(torch: Any, inputs: dict[str, Any]) -> Any:
    """The loss in PyTorch."""
    weights = inputs
    sequence = inputs["source"]
    batch, width = sequence.shape[1:]

    def cell(layer: str, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        gates = x @ weights[f"{layer}_x"] + h @ weights[f"{layer}_h"] + weights[f"{layer}_b"]
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    for layer in ("encoder_1", "encoder_2"):
        h = c = torch.zeros(batch, width)
        outputs = []
        for x in sequence:
            h, c = cell(layer, x, h, c)
            outputs.append(h)
        sequence = torch.stack(outputs)
    memory = sequence.transpose(0, 1)
    keys = memory @ weights["keys_w"]
    h1 = c1 = h2 = c2 = context = torch.zeros(batch, width)
    outputs = []
    for x in inputs["target"]:
        h1, c1 = cell("decoder_1", torch.cat([x, context], 1), h1, c1)
        query = (h1 @ weights["query_w"])[:, None]
        if "score_v" in weights:
            scores = (keys + query).tanh() @ weights["score_v"]
        else:
            scores = (query @ keys.transpose(1, 2))[:, 0] / math.sqrt(width)
        context = (scores.softmax(1)[:, None] @ memory)[:, 0]
        h2, c2 = cell("decoder_2", torch.cat([h1, context], 1), h2, c2)
        outputs.append(h2)
    return (torch.stack(outputs) * inputs["loss_weights"]).sum()


def _feeds(steps: int, width: int, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scale = 1.0 / math.sqrt(width)
    feeds = {name: rng.standard_normal((steps, batch, width)) for name in ("source", "target")}
    for layer, inputs in _LAYERS.items():
        feeds[f"{layer}_x"] = scale * rng.standard_normal((inputs * width, 4 * width))
        feeds[f"{layer}_h"] = scale * rng.standard_normal((width, 4 * width))
        feeds[f"{layer}_b"] = np.repeat([0.0, 1.0, 0.0, 0.0], width)
    feeds |= {name: scale * rng.standard_normal((width, width)) for name in ("keys_w", "query_w")}
    feeds["score_v"] = scale * rng.standard_normal(width)
    feeds["loss_weights"] = rng.standard_normal((steps, batch, width))
    return {name: value.astype(np.float32) for name, value in feeds.items()}


def _cell(layer: str, inputs: list[str]) -> list[onnx.NodeProto]:
    """An LSTM cell of ``inputs``, <layer>_hidden and <layer>_cell; gives the latter two with _next."""

    def name(text: str) -> str:
        return f"{layer}_{text}"

    nodes: list[onnx.NodeProto] = []
    joined = inputs[0]
    if len(inputs) > 1:
        joined = name("joined")
        nodes.append(helper.make_node("Concat", inputs, [joined], axis=1))
    parts = [name(gate) for gate in ("in", "forget", "new", "out")]
    nodes += [
        helper.make_node("MatMul", [joined, name("x")], [name("driven")]),
        helper.make_node("MatMul", [name("hidden"), name("h")], [name("recurrent")]),
        helper.make_node("Add", [name("driven"), name("recurrent")], [name("sum")]),
        helper.make_node("Add", [name("sum"), name("b")], [name("gates")]),
        helper.make_node("Split", [name("gates")], parts, axis=1, num_outputs=4),
        *(helper.make_node("Tanh" if gate.endswith("_new") else "Sigmoid", [gate], [f"{gate}_open"]) for gate in parts),
        helper.make_node("Mul", [name("forget_open"), name("cell")], [name("kept")]),
        helper.make_node("Mul", [name("in_open"), name("new_open")], [name("added")]),
        helper.make_node("Add", [name("kept"), name("added")], [name("cell_next")]),
        helper.make_node("Tanh", [name("cell_next")], [name("shown")]),
        helper.make_node("Mul", [name("out_open"), name("shown")], [name("hidden_next")]),
    ]
    return nodes


def _attend(attention: Attention) -> list[onnx.NodeProto]:
    """From decoder_1_hidden_next, keys [B, S, H] and memory [B, S, H] to context_next [B, H]."""
    nodes = [
        helper.make_node("MatMul", ["decoder_1_hidden_next", "query_w"], ["query_flat"]),
        helper.make_node("Unsqueeze", ["query_flat", "axis_1"], ["query"]),
    ]
    if attention == "additive":
        nodes += [
            helper.make_node("Add", ["keys", "query"], ["matched"]),
            helper.make_node("Tanh", ["matched"], ["match"]),
            helper.make_node("MatMul", ["match", "score_v"], ["scores"]),
        ]
    else:
        nodes += [
            helper.make_node("MatMul", ["query", "keys_transposed"], ["match"]),
            helper.make_node("Squeeze", ["match", "axis_1"], ["match_flat"]),
            helper.make_node("Mul", ["match_flat", "scale"], ["scores"]),
        ]
    return [
        *nodes,
        helper.make_node("Softmax", ["scores"], ["shares"], axis=1),
        helper.make_node("Unsqueeze", ["shares", "axis_1"], ["shares_row"]),
        helper.make_node("MatMul", ["shares_row", "memory"], ["context_row"]),
        helper.make_node("Squeeze", ["context_row", "axis_1"], ["context_next"]),
    ]


def _encoder(layer: str, sequence: str, state: list[int]) -> onnx.NodeProto:
    body = [
        helper.make_node("Gather", [sequence, f"{layer}_i"], [f"{layer}_input"], axis=0),
        *_cell(layer, [f"{layer}_input"]),
        helper.make_node("Identity", [f"{layer}_hidden_next"], [f"{layer}_output"]),
    ]
    carries = {f"{layer}_hidden": state, f"{layer}_cell": state}
    results = [f"{layer}_hidden_end", f"{layer}_cell_end", f"{layer}_sequence"]
    stacked = {f"{layer}_output": state}
    return recurrent.loop(body, carries, "steps", ["zero", "zero"], results, number=f"{layer}_i", stacked=stacked)


def _decoder(attention: Attention, state: list[int]) -> onnx.NodeProto:
    body = [
        helper.make_node("Gather", ["target", "t"], ["word"], axis=0),
        *_cell("decoder_1", ["word", "context"]),
        *_attend(attention),
        *_cell("decoder_2", ["decoder_1_hidden_next", "context_next"]),
        helper.make_node("Identity", ["decoder_2_hidden_next"], ["decoded"]),
    ]
    names: tuple[str, ...] = ("decoder_1_hidden", "decoder_1_cell", "context", "decoder_2_hidden", "decoder_2_cell")
    results = [*(f"{name}_end" for name in names), "outputs"]
    carries: dict[str, list[int]] = dict.fromkeys(names, state)
    return recurrent.loop(body, carries, "steps", ["zero"] * 5, results, number="t", stacked={"decoded": state})


def _graph(attention: Attention, steps: int, width: int, batch: int, feeds: dict[str, np.ndarray]) -> onnx.GraphProto:
    state = [batch, width]
    nodes = [
        _encoder("encoder_1", "source", state),
        _encoder("encoder_2", "encoder_1_sequence", state),
        helper.make_node("Transpose", ["encoder_2_sequence"], ["memory"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["memory", "keys_w"], ["keys"]),
        helper.make_node("Transpose", ["keys"], ["keys_transposed"], perm=[0, 2, 1]),
        _decoder(attention, state),
        helper.make_node("Mul", ["outputs", "loss_weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]
    constants = {
        "steps": np.array(steps),
        "zero": np.zeros(state, np.float32),
        "axis_1": np.array([1]),
        "scale": np.float32(1.0 / math.sqrt(width)),
    }
    if attention == "additive":
        nodes = [node for node in nodes if node.output[0] != "keys_transposed"]
        del constants["scale"]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    ports = [recurrent.tensor(name, list(value.shape)) for name, value in feeds.items()]
    return helper.make_graph(nodes, "gnmt", ports, [recurrent.tensor("loss", [])], initializers)
