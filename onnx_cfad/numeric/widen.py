"""A model in float64: every floating-point tensor, declared type and cast, in every scope."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx.defs
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import graphs_of, subgraphs_of
from onnx_cfad.names import Namer

_DOUBLE = ir.DataType.DOUBLE
_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = {
    "Cast": "to",
    "SequenceEmpty": "dtype",
    "RandomUniform": "dtype",
    "RandomNormal": "dtype",
    "RandomUniformLike": "dtype",
    "RandomNormalLike": "dtype",
    "Bernoulli": "dtype",
    "EyeLike": "dtype",
    "HannWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "GroupNormalization": "stash_type",
    "RMSNormalization": "stash_type",
    "Attention": "softmax_precision",
}
_FLOAT_UNLESS_TOLD = frozenset(
    ("SequenceEmpty", "RandomUniform", "RandomNormal", "HannWindow", "HammingWindow", "BlackmanWindow")
    + ("MelWeightMatrix", "RMSNormalization")
)
_STASH_SINCE = 21  # the opset that gave GroupNormalization its stash_type


def widen(model: ir.Model) -> bool:
    """Puts float64 wherever ``model`` has a narrower floating-point type, in place; functions are inlined.

    An operand that the standard fixes to float32 (the scales of a Resize) is cast back for it.

    Returns:
        Whether all arithmetic is float64: no operator computes in float32 because the standard gives it no other type.
    """
    if model.functions:
        InlinePass()(model)
    namer = Namer.of_model(model)
    exact = True
    for graph in graphs_of(model.graph):
        for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
            _widen_value(value)
        for node in list(graph):
            for output in node.outputs:
                _widen_value(output)
            _widen_attributes(node, model.opset_imports.get(node.domain, 1))
            exact &= _keep_float32_operands(node, model.opset_imports.get(node.domain, 1), namer)
    return exact


def _widen_value(value: ir.Value) -> None:
    if value.const_value is not None and value.const_value.dtype in _NARROW:
        value.const_value = _widened(value.const_value)
    if value.type is not None:
        value.type = _widened_type(value.type)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(np.asarray(tensor.numpy()).astype(np.float64), name=tensor.name)


def _widened_type(type_: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(type_, ir.SequenceType):
        return ir.SequenceType(_widened_type(type_.elem_type))
    if isinstance(type_, ir.OptionalType):
        return ir.OptionalType(_widened_type(type_.elem_type))
    return ir.TensorType(_DOUBLE) if isinstance(type_, ir.TensorType) and type_.dtype in _NARROW else type_


def _widen_attributes(node: ir.Node, opset: int) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _NARROW:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif name == _TYPE_ATTRIBUTES.get(node.op_type) and attribute.as_int() in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, _DOUBLE)
        elif attribute.type == ir.AttributeType.TYPE_PROTO:
            kind = attribute.value
            node.attributes[name] = ir.AttrTypeProto(name, ir.TypeAndShape(_widened_type(kind.type), kind.shape))
    _write_out_defaults(node, opset)


def _write_out_defaults(node: ir.Node, opset: int) -> None:
    """Writes out what an operator takes for float32 unless told otherwise."""
    name = _TYPE_ATTRIBUTES.get(node.op_type, "")
    untold = node.op_type in _FLOAT_UNLESS_TOLD or (node.op_type == "GroupNormalization" and opset >= _STASH_SINCE)
    if untold and name not in node.attributes:
        node.attributes[name] = ir.AttrInt64(name, _DOUBLE)
    if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.zeros(1)))
    for name in ("value_float", "value_floats"):
        if node.op_type == "Constant" and name in node.attributes:
            array = np.asarray(node.attributes.pop(name).value, dtype=np.float32).astype(np.float64)
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(array))


def _keep_float32_operands(node: ir.Node, opset: int, namer: Namer) -> bool:
    """Casts around operands and results that have no float64 form; whether the results are exact all the same.

    They are not where an operand is rounded: small steps of it are none.
    """
    schema = None if subgraphs_of(node) else _schema(node.op_type, opset, node.domain)
    graph = node.graph
    if schema is None or graph is None:
        return True
    exact = True
    for index, value in enumerate(node.inputs):
        if value is not None and _only_float32(schema.inputs, index):
            exact &= constant_of(value) is not None
            cast = _cast(value, ir.DataType.FLOAT, namer)
            graph.insert_before(node, cast)
            node.replace_input_with(index, cast.outputs[0])
    narrow = [o for k, o in enumerate(node.outputs) if _only_float32(schema.outputs, k) and _is_read(o)]
    for output in narrow:
        cast = _cast(output, _DOUBLE, namer)
        graph.insert_after(node, cast)
        wide = cast.outputs[0]
        ir.convenience.replace_all_uses_with(output, wide, replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        wide.name, output.name = output.name, wide.name
        output.type = ir.TensorType(ir.DataType.FLOAT)
    return exact and not narrow


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _cast(value: ir.Value, dtype: ir.DataType, namer: Namer) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], name=namer.fresh("widen.cast"))
    output = node.outputs[0]
    output.name, output.type, output.shape = namer.fresh("widen.value"), ir.TensorType(dtype), value.shape
    return node


@functools.cache
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _only_float32(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> bool:
    """Whether a formal parameter (the last one repeats) takes float32, but neither float64 nor anything not a float."""
    if not parameters:
        return False
    types = set(parameters[min(index, len(parameters) - 1)].types)
    floats = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}
    return "tensor(float)" in types and types <= floats
