# Claim: the gradient by all weights of a straight-line network takes at most 0.7x the CPU time of onnx-ad's, and of a
# chain of MatMul and Tanh layers at most 4 nodes for each node of the network.
"""Networks without control flow: a perceptron, a small residual convolution network, a chain of layers.

What onnxruntime-training 1.19.2 makes of the perceptron and of the residual network (nodes, fused operators of its own
among them) was counted once with its GradientGraphBuilder: 20 and 66.
"""

from __future__ import annotations

import itertools

import machine
import numpy as np
import onnx
from gradients import onnx_ad, ours
from meter import Bench, Case, forward
from onnx import helper

TRAINING_NODES = {"perceptron": 20, "residual": 66}
Weights = dict[str, np.ndarray]


def perceptron(batch: int = 32, widths: tuple[int, ...] = (64, 128, 128, 10)) -> Case:
    rng, nodes, weights, h = np.random.default_rng(0), [], {}, "x"
    for k, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        weights |= {f"W{k}": rng.normal(size=(fan_in, fan_out)) / fan_in**0.5, f"b{k}": np.zeros(fan_out)}
        nodes.append(helper.make_node("Gemm", [h, f"W{k}", f"b{k}"], [f"z{k}"]))
        h = f"z{k}"
        if k < len(widths) - 2:
            nodes.append(helper.make_node("Relu", [h], [f"h{k}"]))
            h = f"h{k}"
    return _classifier("perceptron", nodes, h, rng.normal(size=(batch, widths[0])), weights, rng)


def residual(blocks: int = 4, channels: int = 16, batch: int = 8, size: int = 16) -> Case:
    rng, nodes, weights = np.random.default_rng(0), [], {}

    def conv(x: str, name: str, fan_in: int) -> str:
        weights[f"{name}.w"] = rng.normal(size=(channels, fan_in, 3, 3)) / (9 * fan_in) ** 0.5
        weights[f"{name}.b"] = np.zeros(channels)
        nodes.append(helper.make_node("Conv", [x, f"{name}.w", f"{name}.b"], [name], pads=[1] * 4))
        return name

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}.r"]))
        return f"{x}.r"

    h = relu(conv("x", "stem", 3))
    for k in range(blocks):
        inner = conv(relu(conv(h, f"{k}a", channels)), f"{k}b", channels)
        nodes.append(helper.make_node("Add", [inner, h], [f"{k}sum"]))
        h = relu(f"{k}sum")
    nodes += [helper.make_node("GlobalAveragePool", [h], ["pool"]), helper.make_node("Flatten", ["pool"], ["flat"])]
    weights |= {"W": rng.normal(size=(channels, 10)) / channels**0.5, "b": np.zeros(10)}
    nodes.append(helper.make_node("Gemm", ["flat", "W", "b"], ["z"]))
    return _classifier("residual", nodes, "z", rng.normal(size=(batch, 3, size, size)), weights, rng)


def chain(layers: int, width: int = 8, batch: int = 4) -> Case:
    rng, nodes, weights, h = np.random.default_rng(0), [], {}, "x"
    for k in range(layers):
        weights[f"W{k}"] = rng.normal(size=(width, width)) / width**0.5
        nodes += [helper.make_node("MatMul", [h, f"W{k}"], [f"m{k}"]), helper.make_node("Tanh", [f"m{k}"], [f"h{k}"])]
        h = f"h{k}"
    nodes.append(helper.make_node("ReduceSum", [h], ["loss"], keepdims=0))
    return _case(f"chain of {layers}", nodes, {"x": rng.normal(size=(batch, width))}, weights)


def _classifier(
    name: str, nodes: list[onnx.NodeProto], scores: str, x: np.ndarray, weights: Weights, rng: np.random.Generator
) -> Case:
    nodes.append(helper.make_node("SoftmaxCrossEntropyLoss", [scores, "t"], ["loss"]))
    return _case(name, nodes, {"x": x, "t": rng.integers(0, 10, len(x))}, weights)


def _case(name: str, nodes: list[onnx.NodeProto], inputs: Weights, weights: Weights) -> Case:
    feeds = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in {**inputs, **weights}.items()}
    ports = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in feeds.items()
    ]
    graph = helper.make_graph(nodes, "network", ports, [helper.make_tensor_value_info("loss", 1, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return Case(name, model, feeds, tuple(weights))


def main() -> None:
    bench = Bench("straight_line")
    for case in (perceptron(), residual()):
        mine = ours(case, "onnx-cfad")
        measured = bench.measure(case, [forward(case), mine, onnx_ad(case)])
        if "onnx-ad" in measured:
            figure = measured["onnx-cfad"].cpu_s / measured["onnx-ad"].cpu_s
            bench.claim(f"{case.name}: times the CPU time of onnx-ad", figure, at_most=0.7)
        nodes = mine.about["nodes"] / TRAINING_NODES[case.name]
        bench.claim(f"{case.name}: nodes, times those of onnxruntime-training 1.19.2", nodes, at_most=1.2)
    ready = {}
    for layers in (400, 1600):
        case = chain(layers)
        mine = ours(case, "onnx-cfad")
        ready[layers] = bench.measure(case, [forward(case), mine], rounds=1, at_most=2)["onnx-cfad"].create_cpu_s
        nodes = mine.about["nodes"] / machine.count_nodes(case.model.graph)
        bench.claim(f"{case.name} layers: nodes for each node of the network", nodes, at_most=4)
    bench.claim("four times the layers: times the CPU time until it can run", ready[1600] / ready[400], at_most=5)
    bench.finish()


if __name__ == "__main__":
    main()
