"""Weights made inputs of a model, so that they can be varied: initializers and constants, in any scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.model import normalise
from onnx_cfad.names import Namer

Array = np.ndarray[Any, Any]


def find_weights(model: ir.Model, name: str) -> list[ir.Value]:
    """The initializers and constants called ``name``: in the main graph if there is one, else in all other scopes."""
    for graphs in ([model.graph], graphs_of(model.graph)[1:]):
        held = [value for graph in graphs for value in graph.initializers.values() if value.name == name]
        made = [
            node.outputs[0]
            for graph in graphs
            for node in graph
            if node.op_type == "Constant" and node.outputs[0].name == name
        ]
        if held or made:
            return [*held, *made]
    return []


def weights_as_inputs(model: ir.Model, names: Iterable[str]) -> tuple[dict[str, str], dict[str, Array]]:
    """Makes weights inputs of ``model``, in place.

    Args:
        model: The model.
        names: Names of initializers or constants, each found once by ``find_weights``.

    Returns:
        The name of the input for each weight, and the values by input name.

    Raises:
        ModelError: A name is not there, or is there twice.
    """
    namer = Namer.of_model(model)
    inputs: dict[str, str] = {}
    values: dict[str, Array] = {}
    for name in names:
        found = find_weights(model, name)
        if len(found) != 1:
            raise ModelError(f"wrt '{name}'", f"the model has {len(found)} initializers or constants of this name")
        tensor = ir.convenience.get_const_tensor(found[0])
        if tensor is None:
            raise ModelError(f"wrt '{name}'", "its value is not known")
        inputs[name] = _made_input(model.graph, found[0], tensor, namer)
        values[inputs[name]] = np.array(tensor.numpy())
    return inputs, values


def _made_input(main: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol, namer: Namer) -> str:
    """Puts ``Identity(new input)`` where the weight was; gives the input's name."""
    name = namer.fresh(f"weight.{value.name}")
    shape = ir.Shape(tensor.shape.numpy())
    source = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
    main.inputs.append(source)
    graph, node = value.graph, value.producer()
    assert graph is not None
    copy = ir.Node("", "Identity", [source], name=namer.fresh(f"{name}.copy"))
    result = copy.outputs[0]
    result.type, result.shape = ir.TensorType(tensor.dtype), shape
    first = node if node is not None else next(iter(graph), None)
    if first is not None:
        graph.insert_before(first, copy)
    else:
        graph.append(copy)
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    own_name = value.name
    if node is not None:
        graph.remove(node, safe=True)
    else:
        if value.is_graph_input():
            graph.inputs.remove(value)
        del graph.initializers[own_name or ""]
    result.name = own_name
    return name


def opened(
    primal: ir.Model, names: Sequence[str], held: Mapping[str, str]
) -> tuple[ir.Model, dict[str, str], dict[str, Array]]:
    """The primal with the wanted weights as inputs: the input for each name, and the values of the weights.

    A weight that is an input already, with a default, keeps its name; its value is the default, and a feed goes first.
    """
    own = {value.name for value in primal.graph.inputs if value.name}
    defaults = {name: primal.graph.initializers.get(name) for name in {held[name] for name in names} & own}
    weights = [held[name] for name in names if held[name] not in own]
    model = primal.clone()
    if any(len(find_weights(model, name)) != 1 for name in weights):
        model = normalise(model)  # a name that several scopes use is unique there, and is what the gradient calls it
    inputs, values = weights_as_inputs(model, weights)
    for name, value in defaults.items():
        if value is not None and value.const_value is not None:
            values[name] = np.array(value.const_value.numpy())
    return model, {name: inputs.get(held[name], held[name]) for name in names}, values
