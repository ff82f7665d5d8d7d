"""What the options name, found in the model: values to differentiate by, outputs to differentiate, constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.regions import ControlFlowGraph, Region, label
from onnx_cfad.graph.walk import graphs_of, nodes_of
from onnx_cfad.names import InterfaceNames, Namer
from onnx_cfad.nearest import did_you_mean, nearest
from onnx_cfad.options import Options
from onnx_cfad.ports import describe, listed, type_name
from onnx_cfad.scopes import AUTHOR_NAME, rename
from onnx_cfad.trainable import weights_of


@dataclasses.dataclass(frozen=True)
class Selection:
    """The values that an option set names.

    Attributes:
        wrt: Graph inputs and initializers of the main graph, without repetition. A constant of a subgraph has become
            an initializer called ``scope/path:name``.
        outputs: Graph outputs.
        stopped: Values that count as constants.
        fixed_seed: The seed is 1 (a loss) instead of a graph input.
    """

    wrt: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    stopped: frozenset[ir.Value]
    fixed_seed: bool


def select(model: ir.Model, options: Options, sites: ControlFlowGraph) -> Selection:
    """Finds what ``options`` name; constants inside subgraphs that are asked for become main-graph initializers.

    Raises:
        ModelError: A name is not in the model, is not floating point, or a loss is not a scalar.
    """
    outputs = _outputs(model.graph, options)
    wrt = [] if options.wrt is None and options.wrt_initializers else _wrt(model, options, sites)
    if options.wrt_initializers:
        wrt += _trainable(model, sites)
    return Selection(tuple(dict.fromkeys(wrt)), outputs, _stopped(model, options), options.loss is not None)


def reselect(model: ir.Model, options: Options, selection: Selection) -> Selection:
    """``selection`` after the inside of ``model`` was rewritten: outputs and stopped values may be new ones."""
    return Selection(selection.wrt, _outputs(model.graph, options), _stopped(model, options), selection.fixed_seed)


def interface_names(graph: ir.Graph, selection: Selection, *, forward: bool = False) -> InterfaceNames:
    """What seeds and gradients (or tangents) are called: beside everything in the main graph that a user can name."""
    taken = [value.name or "" for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())]
    wrt, outputs = ([value.name or "" for value in values] for values in (selection.wrt, selection.outputs))
    if forward:
        return InterfaceNames.forward(taken, outputs, wrt)
    return InterfaceNames.beside(taken, [] if selection.fixed_seed else outputs, wrt)


def _outputs(graph: ir.Graph, options: Options) -> tuple[ir.Value, ...]:
    known = {output.name: output for output in graph.outputs}
    names = options.outputs if options.loss is None else (options.loss,)
    if names is None:
        found = [
            output for output in graph.outputs if isinstance(output.type, ir.TensorType) and carries_derivative(output)
        ]
        if not found:
            raise ModelError("model", "it has no floating-point output, so there is nothing to differentiate")
        return tuple(dict.fromkeys(found))
    chosen: list[ir.Value] = []
    if options.loss is not None and options.outputs is not None:
        raise ModelError(f"loss '{options.loss}'", "a loss and outputs are both named", "Name one or the other.")
    for name in dict.fromkeys(names):
        if name not in known:
            outputs = [str(output) for output in known]
            remedy = did_you_mean(name, outputs, "Check the name.")
            raise ModelError(f"output '{name}'", f"the model has no such output; it has {listed(outputs, 20)}", remedy)
        if not isinstance(known[name].type, ir.TensorType) or not carries_derivative(known[name]):
            found = f"expected a floating-point tensor, found {_type_of(known[name])}"
            raise ModelError(f"output '{name}'", found, "Only floating-point outputs have a derivative: leave it out.")
        chosen.append(known[name])
    if options.loss is not None:
        _require_scalar(chosen[0], graph.inputs)
    return tuple(chosen)


def _require_scalar(loss: ir.Value, inputs: Sequence[ir.Value]) -> None:
    shape = loss.shape
    if shape is None or any(not isinstance(d, int) or d != 1 for d in shape.dims):
        raise ModelError(
            f"loss '{loss.name}'",
            f"expected a scalar, found {_shape_of(loss, inputs)}",
            "Name a scalar output, or use vjp with a seed (without --loss).",
        )


def _wrt(model: ir.Model, options: Options, sites: ControlFlowGraph) -> list[ir.Value]:
    graph = model.graph
    if options.wrt is None:
        found = [v for v in graph.inputs if isinstance(v.type, ir.TensorType) and carries_derivative(v)]
        if not found:
            raise ModelError(
                "model",
                "it has no floating-point input to differentiate by",
                "Name initializers with --wrt, or use --wrt-initializers.",
            )
        return found
    constants = {n.outputs[0].name: n.outputs[0] for n in graph if n.op_type == "Constant"}
    named = {**constants, **graph.initializers, **{v.name: v for v in graph.inputs}}
    regions = {region.path: region for site in sites.sites() for region in site.regions}
    return [_value_to_differentiate_by(model, name, named, regions) for name in options.wrt]


def _value_to_differentiate_by(
    model: ir.Model, name: str, named: Mapping[str | None, ir.Value], regions: Mapping[str, Region]
) -> ir.Value:
    graph = model.graph
    value = named.get(name) or graph.initializers.get(name) or _constant_inside(model, name, regions)
    if value is None:
        known = [*(v.name or "" for v in graph.inputs), *graph.initializers, *_weights_inside(regions)]
        made = next((label(node) for node in nodes_of(graph) if name in [o.name for o in node.outputs]), None)
        found = "the model has no such input, initializer or constant" if made is None else f"it is computed, by {made}"
        near = nearest(name, known)
        if near is not None and (made is None or near.endswith(f":{name}")):
            raise ModelError(f"wrt '{name}'", found, f"Did you mean '{near}'?")
        raise ModelError(
            f"wrt '{name}'",
            f"{found}; inputs and initializers are {listed(known, 20)}",
            "Check the name; what is inside a loop or branch is called scope/path:name.",
        )
    if not isinstance(value.type, ir.TensorType) or not carries_derivative(value):
        found = f"expected a floating-point tensor, found {_type_of(value)}"
        raise ModelError(f"wrt '{name}'", found, "Only floating-point values have a derivative: leave it out.")
    return value


def _constant_inside(model: ir.Model, name: str, regions: Mapping[str, Region]) -> ir.Value | None:
    """The initializer or Constant ``scope/path:name`` of a subgraph, moved to the main graph's initializers."""
    paths = (name[:end] for end, character in enumerate(name) if character == ":")
    path = next((path for path in paths if path in regions), None)
    if path is None:
        return None
    region, inner = regions[path], name.removeprefix(f"{path}:")
    known = _constants_of(region)
    if inner not in known:
        remedy = did_you_mean(inner, known, "Check the name.")
        raise ModelError(f"wrt '{name}'", f"'{path}' has no such constant; it has {listed(known, 20)}", remedy)
    return _lifted(model, known[inner], name, Namer.of_model(model))


def _constants_of(region: Region) -> dict[str, ir.Value]:
    made = [node.outputs[0] for node in region.graph if node.op_type == "Constant"]
    values = (*region.graph.initializers.values(), *made)
    return {_author_name(value): value for value in values}


def _weights_inside(regions: Mapping[str, Region]) -> list[str]:
    """What the weights of subgraphs are called from outside."""
    return [f"{path}:{_author_name(v)}" for path, region in regions.items() for v in weights_of(region.graph)]


def _author_name(value: ir.Value) -> str:
    return str(value.meta.get(AUTHOR_NAME, value.name))


def held_name(value: ir.Value) -> str:
    """The name of a wrt value in the normalised model, before a constant of a subgraph was moved."""
    return _author_name(value)


def _lifted(model: ir.Model, value: ir.Value, name: str, namer: Namer) -> ir.Value | None:
    """``value`` as an initializer ``name`` of the main graph; None where it is not constant."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None:
        return None
    node, graph = value.producer(), value.graph
    new = ir.Value(
        name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    assert graph is not None
    if value.is_graph_output():
        _hand_out_copy(graph, value, namer)
    ir.convenience.replace_all_uses_with(value, new)
    if node is not None:
        graph.remove(node)
    else:
        del graph.initializers[value.name or ""]
    rename(new, namer.fresh(name))
    model.graph.initializers.add(new)
    return new


def _hand_out_copy(graph: ir.Graph, value: ir.Value, namer: Namer) -> None:
    """Puts a copy of ``value`` in its place among the outputs of ``graph``, which may not give a value from outside."""
    node = ir.Node("", "Identity", [value], name=namer.fresh(f"{value.name}/copy"))
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = namer.fresh(f"{value.name}.copy"), value.type, value.shape
    graph.append(node)
    graph.outputs[:] = [copy if output is value else output for output in graph.outputs]


def _trainable(model: ir.Model, sites: ControlFlowGraph) -> list[ir.Value]:
    """Every weight in any scope; those inside subgraphs become main-graph initializers."""
    found = list(weights_of(model.graph))
    paths = {region.graph: region.path for site in sites.sites() for region in site.regions}
    namer = Namer.of_model(model)
    for graph in graphs_of(model.graph)[1:]:
        for value in list(weights_of(graph)):
            lifted = _lifted(model, value, f"{paths[graph]}:{_author_name(value)}", namer)
            found += [] if lifted is None else [lifted]
    if not found:
        raise ModelError("model", "it has no floating-point initializer to differentiate by", "Name inputs with --wrt.")
    return found


def _stopped(model: ir.Model, options: Options) -> frozenset[ir.Value]:
    wanted = set(options.stop_gradient)
    if not wanted:
        return frozenset()
    graphs = graphs_of(model.graph)
    values = [v for g in graphs for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))]
    found = {v.name: v for v in values if v.name in wanted}
    missing = sorted(wanted - {name for name in found if name})
    if missing:
        remedy = did_you_mean(missing[0], [v.name for v in values if v.name], "Check the name.")
        raise ModelError(f"stop_gradient '{missing[0]}'", "the model has no value of this name", remedy)
    return frozenset(found.values())


def _type_of(value: ir.Value) -> str:
    """The element type of a value, or the type of one that is no tensor."""
    return type_name(value.type.dtype) if isinstance(value.type, ir.TensorType) else str(value.type)


def _shape_of(value: ir.Value, inputs: Sequence[ir.Value]) -> str:
    """The type of a tensor with its shape; a dimension has a name where an input has that name."""
    if value.shape is None:
        return f"{_type_of(value)} of unknown rank"
    shapes = [v.shape for v in inputs if v.shape is not None]
    named = {d.value for shape in shapes for d in shape.dims if isinstance(d, ir.SymbolicDim)}
    dims = (d if isinstance(d, int) else d.value if d.value in named else None for d in value.shape.dims)
    return describe(_type_of(value), dims)
