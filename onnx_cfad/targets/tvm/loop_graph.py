"""What a whole-loop function needs to know of an ONNX graph: constants, shapes, runs of straight-line nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnx_cfad.targets.tvm.commands import Refused

CONTROL = ("Loop", "Scan", "If")
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
"""Operators whose result has the elements of their input in the same order."""


def attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among a node's attributes."""
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def constant_of(node: NodeProto) -> np.ndarray | None:
    """The value of a Constant node; None for another."""
    if node.op_type != "Constant":
        return None
    given = attributes(node)
    if "value" in given:
        return numpy_helper.to_array(given["value"])
    name, value = next(iter(given.items()))
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name not in kinds:
        raise Refused(f"a Constant with {name}")
    return np.array(value, kinds[name])


def reads(nodes: Iterable[NodeProto]) -> list[str]:
    """Every name that nodes read, in their subgraphs too, in order; names made in a subgraph are among them."""
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(name for name in node.input if name))
        for graph in subgraphs(node):
            found.update(dict.fromkeys(reads(graph.node)))
            found.update(dict.fromkeys(output.name for output in graph.output))
    return list(found)


def with_plain_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """A straight-line model whose values are called v0, v1, ...: names become identifiers of a language."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names: dict[str, str] = {"": ""}
    graph = made.graph
    for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output):
        value.name = names.setdefault(value.name, f"v{len(names)}")
    for node in graph.node:
        for ports in (node.input, node.output):
            for k, name in enumerate(ports):
                ports[k] = names.setdefault(name, f"v{len(names)}")
    return made


def free_inputs(model: onnx.ModelProto) -> list[ValueInfoProto]:
    """The inputs of a model that have no default, in its order."""
    held = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in held]


def all_nodes(graph: GraphProto) -> list[NodeProto]:
    """The nodes of a graph and of its subgraphs."""
    return [n for node in graph.node for n in (node, *(i for g in subgraphs(node) for i in all_nodes(g)))]


def declared(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """What a graph says of its values."""
    return {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}


def changed(node: NodeProto, inputs: dict[int, str], without: str) -> NodeProto:
    """A node with other inputs and without one of its attributes."""
    made = NodeProto()
    made.CopyFrom(node)
    for position, name in inputs.items():
        made.input[position] = name
    kept = [a for a in made.attribute if a.name != without]
    del made.attribute[:]
    made.attribute.extend(kept)
    return made


def goes_on(body: GraphProto) -> bool:
    """Whether the condition that the body of a Loop gives is the one that it got, or true."""
    source = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in source and source[name].op_type == "Identity":
        name = source[name].input[0]
    if name == body.input[1].name:
        return True
    fixed = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
    value = constant_of(source[name]) if name in source else fixed.get(name)
    return value is not None and bool(value.reshape(-1)[0])


def dims(value: ValueInfoProto) -> tuple[int | str, ...] | None:
    """The dimensions of a declared value: numbers and symbols; None where one is not known."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    given = value.type.tensor_type.shape.dim
    found = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in given)
    return None if "" in found else found


def element_type(value: ValueInfoProto) -> str:
    """The element type of a declared value, as NumPy and TVM write it."""
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name


def tensor_type(dtype: str) -> int:
    """The ONNX element type."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def straight_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[Any]]],
    constants: dict[str, np.ndarray],
    outputs: Sequence[str],
    opset: int,
) -> onnx.ModelProto:
    """Straight-line nodes as a model.

    Args:
        nodes: The nodes.
        inputs: Element type and dimensions (numbers and symbols) by name.
        constants: Constants by name.
        outputs: Names.
        opset: Version of the operators.
    """
    graph = helper.make_graph(
        list(nodes),
        "straight",
        [helper.make_tensor_value_info(n, tensor_type(t), list(s)) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
