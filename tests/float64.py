"""Widens a model from float32 to float64: every tensor, declared type and cast, in every scope.

A scalar constant becomes the decimal it was written as, 0.05 for the float32 next to it, since that is what a program
in float64 has in its place. Other tensors keep their values.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

# Attributes that name an element type; an absent one means float32, except for Cast, which always has it.
_TYPE_ATTRIBUTES = {
    "Cast": "to",
    "SequenceEmpty": "dtype",
    "RandomUniform": "dtype",
    "RandomNormal": "dtype",
    "EyeLike": "dtype",
    "Bernoulli": "dtype",
}
_ABSENT_MEANS_FLOAT = frozenset(("SequenceEmpty", "RandomUniform", "RandomNormal"))


def widen(model: ModelProto) -> ModelProto:
    """A copy of ``model`` in which float64 stands wherever float32 stood."""
    wide = ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    return wide


def widen_array(array: np.ndarray) -> np.ndarray:
    """``array`` in float64 when it is float32, else as it is."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widen_graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(info.type)
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g)
        elif attribute.name == _TYPE_ATTRIBUTES.get(node.op_type) and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
    _state_defaults(node)


def _state_defaults(node: NodeProto) -> None:
    """Writes out what an operator takes for float32 unless told otherwise."""
    present = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type in _ABSENT_MEANS_FLOAT and "dtype" not in present:
        node.attribute.append(helper.make_attribute("dtype", TensorProto.DOUBLE))
    if node.op_type == "ConstantOfShape" and "value" not in present:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for name in ("value_float", "value_floats"):
        if node.op_type == "Constant" and name in present:
            array = np.asarray(helper.get_attribute_value(present[name]), dtype=np.float32).astype(np.float64)
            node.attribute.remove(present[name])
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor)
        wide = np.float64(str(array)) if array.ndim == 0 else array.astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(wide), tensor.name))


def _widen_type(type_: TypeProto) -> None:
    if type_.HasField("sequence_type"):
        _widen_type(type_.sequence_type.elem_type)
    elif type_.HasField("optional_type"):
        _widen_type(type_.optional_type.elem_type)
    elif type_.tensor_type.elem_type == TensorProto.FLOAT:
        type_.tensor_type.elem_type = TensorProto.DOUBLE
