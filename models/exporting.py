"""The two ways of exporting a PyTorch module, with every parameter an initializer under its PyTorch name."""

from __future__ import annotations

import pathlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

SCRIPT_OPSET = 17
PROGRAM_OPSET = 18


def initialise(module: nn.Module, gain: float) -> None:
    """Draws every parameter from N(0, gain^2 / fan-in), biases included: no two are equal, and none is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else parameter.numel()
            parameter.normal_(0.0, gain / fan_in**0.5)


def export_script(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
) -> onnx.ModelProto:
    """Exports by way of TorchScript, where the loops of a scripted module become Loop nodes.

    Constants are not folded, so that the parameters stay what they are in PyTorch: a model to train.

    Args:
        module: The module; it is scripted, not traced.
        inputs: Example inputs by name, in the order of the module's arguments.
        outputs: Names of the outputs.
        dynamic_axes: Names of the symbolic dimensions, by input or output and axis.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        path = pathlib.Path(folder, "model.onnx")
        warnings.simplefilter("ignore")  # this exporter is deprecated, and still the only one that writes Loop
        torch.onnx.export(
            torch.jit.script(module),
            tuple(inputs.values()),
            path,
            dynamo=False,
            opset_version=SCRIPT_OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=dynamic_axes,
            do_constant_folding=False,
        )
        return name_parameters(onnx.load(path), module)


def export_program(module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> onnx.ModelProto:
    """Exports by way of torch.export, where torch.cond becomes If and scan becomes Scan; shapes are static."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            dynamo=True,
            opset_version=PROGRAM_OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of the machine that exported
    for value in _all_values(program.model):
        value.metadata_props.clear()
    program.model.metadata_props.clear()
    return name_parameters(program.model_proto, module)


def name_parameters(proto: onnx.ModelProto, module: nn.Module) -> onnx.ModelProto:
    """Makes Constant nodes that hold a parameter initializers under the parameter's name.

    The TorchScript exporter writes the weights of nn.LSTM as Constant nodes, since a scripted nn.LSTM keeps them in a
    list beside its parameters.
    """
    model = ir.from_proto(proto)
    parameters = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    names = {(array.shape, array.tobytes()): name for name, array in parameters.items()}
    for node in list(model.graph):
        if node.op_type != "Constant" or "value" not in node.attributes:
            continue
        array = node.attributes["value"].as_tensor().numpy()
        name = names.get((array.shape, array.tobytes()))
        if name is None or name in model.graph.initializers:
            continue
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        model.graph.initializers.add(value)
        node.outputs[0].replace_all_uses_with(value)
        model.graph.remove(node, safe=True)
    return ir.to_proto(model)


def _all_values(model: ir.Model) -> list[ir.Value]:
    graphs = (model.graph, *model.graph.subgraphs())
    values = [value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())]
    return values + [output for node in model.graph.all_nodes() for output in node.outputs]
