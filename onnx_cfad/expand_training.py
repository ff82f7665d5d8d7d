"""The training operators of a model written out in standard operators, which every runtime has."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.errors import ModelError
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.model import Source, load, normalise
from onnx_cfad.names import Namer
from onnx_cfad.options import Options
from onnx_cfad.rewriters.expand_gradient_op import DOMAIN, ExpandGradientOpPass
from onnx_cfad.rules.training import OPTIMISERS, optimised
from onnx_cfad.scopes import AUTHOR_NAME


def expand(model: Source) -> ir.Model:
    """A model with its Gradient, Adagrad, Adam and Momentum nodes written out.

    Args:
        model: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``; never modified.

    Raises:
        ModelError: The model is unusable, or a Gradient node names what is not there.
        UnsupportedOp: A Gradient node asks for the derivative of an operator without a rule.
    """
    return expand_training(normalise(load(model)))


def expand_training(model: ir.Model) -> ir.Model:
    """The same on a model in its normal form, in place. Free where it has no such nodes."""
    if not any(node.domain == DOMAIN for node in nodes_of(model.graph)):
        return model
    infer_types(model)
    for node in nodes_of(model.graph):
        if node.domain == DOMAIN and node.op_type in OPTIMISERS:
            with Blamed(node, "its update cannot be written out", model):
                _expand_optimiser(model, node)
    ExpandGradientOpPass(_gradient, infer_types, _author_name)(model)
    if not any(node.domain == DOMAIN for node in nodes_of(model.graph)):
        model.opset_imports.pop(DOMAIN, None)
    return model


def training_operators(model: ir.Model) -> tuple[str, ...]:
    """The operators of a model, its functions' too, that ``expand`` writes out; each once, in order."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    found = (node.op_type for graph in graphs for node in nodes_of(graph) if node.domain == DOMAIN)
    return tuple(dict.fromkeys(found))


def _author_name(value: ir.Value) -> str:
    return str(value.meta.get(AUTHOR_NAME, value.name))


def _expand_optimiser(model: ir.Model, node: ir.Node) -> None:
    graph, groups = node.graph, OPTIMISERS[node.op_type][1]
    assert graph is not None
    present = [value for value in node.inputs if value is not None]
    if len(present) != len(node.inputs) or len(present) < 2 + groups or (len(present) - 2) % groups:
        title = f"{node.op_type} '{node.name}'"
        raise ModelError(title, f"it has {len(present)} inputs, expected 2 and {groups} for each tensor", "Add them.")
    builder = Builder(Namer.of_model(model), model.opset_imports[""])
    attributes: dict[str, object] = {
        name: a.as_string() if a.type == ir.AttributeType.STRING else a.value for name, a in node.attributes.items()
    }
    results = optimised(node.op_type, [builder.expr(value) for value in present], attributes)
    own = [builder.fresh_identity(result.value) for result in results]
    for old, new in zip(node.outputs, own, strict=False):
        new.type, new.shape = old.type or new.type, old.shape
    assert isinstance(graph, ir.Graph)
    for initializer in builder.initializers:
        graph.initializers.add(initializer)
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], builder.nodes, list(node.outputs), own[: len(node.outputs)]
    )


def _gradient(model: ir.Model, wrt: Sequence[str]) -> tuple[ir.Model, Sequence[str]]:
    """The gradient of the sum of the output of ``model``: that is what a cotangent of ones gives."""
    from onnx_cfad.differentiate import differentiate  # noqa: PLC0415 - which expands the model that it is given

    y = model.graph.outputs[0]
    namer = Namer.of_model(model)
    total = ir.Node("", "ReduceSum", [y], [ir.AttrInt64("keepdims", 0)], name=namer.fresh("sum"))
    total.outputs[0].name, total.outputs[0].type, total.outputs[0].shape = namer.fresh("sum.out"), y.type, ir.Shape([])
    model.graph.append(total)
    model.graph.outputs[:] = [total.outputs[0]]
    gradient = differentiate(model, Options(wrt=tuple(wrt), loss=total.outputs[0].name))
    return gradient.model, [gradient.report.gradients[name] for name in wrt]
