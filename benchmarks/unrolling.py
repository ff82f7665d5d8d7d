"""A model with its fixed Loops written out iteration after iteration, as a framework without loops would have it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def unrolled(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` without Loops. Each Loop runs as often as an initializer says, has no condition, and holds no loop."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    numbers: dict[int, onnx.TensorProto] = {}
    for node in model.graph.node:
        if node.op_type == "Loop":
            nodes += _written_out(node, int(constants[node.input[0]]), numbers)
        else:
            nodes.append(node)
    graph = helper.make_graph(
        nodes,
        f"{model.graph.name}_unrolled",
        list(model.graph.input),
        list(model.graph.output),
        [*model.graph.initializer, *numbers.values()],
    )
    return helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)


def _written_out(node: onnx.NodeProto, trips: int, numbers: dict[int, onnx.TensorProto]) -> list[onnx.NodeProto]:
    """The iterations of a Loop, with the initial carries as the first one's and the results under the Loop's names."""
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    carried = len(node.input) - 2
    entries = [port.name for port in body.input[2:]]
    exits = [port.name for port in body.output[1:]]
    kept = body.output[0].name
    current = list(node.input[2:])
    pieces: list[list[str]] = [[] for _ in exits[carried:]]
    nodes: list[onnx.NodeProto] = []
    for trip in range(trips):
        if trip not in numbers:
            numbers[trip] = numpy_helper.from_array(np.array(trip), f"trip_{trip}")
        names = dict(zip(entries, current, strict=True)) | {body.input[0].name: numbers[trip].name}
        for inner in body.node:
            if inner.output[0] == kept:
                continue
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            copy.input[:] = [names.get(name, name) for name in inner.input]
            copy.output[:] = [f"{node.output[0]}.{trip}.{name}" for name in inner.output]
            names |= dict(zip(inner.output, copy.output, strict=True))
            nodes.append(copy)
        current = [names[name] for name in exits[:carried]]
        for piece, name in zip(pieces, exits[carried:], strict=True):
            nodes.append(helper.make_node("Unsqueeze", [names[name], "axis_0"], [f"{names[name]}.row"]))
            piece.append(f"{names[name]}.row")
    if pieces:
        numbers[-1] = numpy_helper.from_array(np.array([0]), "axis_0")
    nodes += [helper.make_node("Identity", [name], [end]) for name, end in zip(current, node.output, strict=False)]
    stacks = zip(pieces, node.output[carried:], strict=True)
    return nodes + [helper.make_node("Concat", piece, [stack], axis=0) for piece, stack in stacks]
