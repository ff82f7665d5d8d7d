"""What a corpus model is, how its text becomes a model, and the table of all of them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnx import AttributeProto, GraphProto, TensorProto, TypeProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

REALS = {"double": TensorProto.DOUBLE, "float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class Example(NamedTuple):
    """A model with inputs to run it on.

    Attributes:
        model: The model; all its floating-point types are one type.
        feeds: Its inputs.
        wrt: Inputs and initializers to differentiate by.
        outputs: Outputs to differentiate; None for all floating-point ones.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    wrt: tuple[str, ...]
    outputs: tuple[str, ...] | None = None


Maker = Callable[..., Example]
CORPUS: dict[str, dict[str, Maker]] = {}


def corpus_model(maker: Maker) -> Maker:
    """Enters ``maker`` into the table, under its name and the module it stands in."""
    group = CORPUS.setdefault(maker.__module__.rpartition(".")[2], {})
    if maker.__name__ in group:
        raise ValueError(f"the corpus has {maker.__name__} already")
    group[maker.__name__] = maker
    return maker


def example(
    real: str,
    text: str,
    feeds: Mapping[str, Any],
    *,
    wrt: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    opset: int = 21,
) -> Example:
    """A corpus model from its text.

    Args:
        real: "double", "float" or "float16": what ``real`` stands for.
        text: Inputs, outputs, initializers and nodes in ONNX text, without header and name.
        feeds: For each input an array-like, or a shape (a tuple) to be filled with random numbers.
        wrt: Names to differentiate by; default: the floating-point inputs.
        outputs: Names of outputs to differentiate; default: all floating-point ones.
        opset: Opset of the default domain.
    """
    name = sys._getframe(1).f_code.co_name
    header = f'<ir_version: 10, opset_import: ["": {opset}]> {name} '
    model = onnx.parser.parse_model(header + text.replace("real", "double"))
    _narrow_graph(model.graph, REALS[real])
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    dtype = helper.tensor_dtype_to_np_dtype(REALS[real])
    arrays = {key: _feed(value, dtype, generator) for key, value in feeds.items()}
    wrt = wrt or tuple(key for key, array in arrays.items() if array.dtype == dtype)
    return Example(model, arrays, wrt, outputs)


def _feed(value: Any, dtype: np.dtype[Any], generator: np.random.Generator) -> Array:
    array = generator.standard_normal(value) if isinstance(value, tuple) else np.asarray(value)
    return array.astype(dtype) if array.dtype == np.float64 else array


def _narrow_graph(graph: GraphProto, element: int) -> None:
    """Puts ``element`` in the place of double, in every scope."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        _narrow_type(info.type, element)
    for tensor in graph.initializer:
        _narrow_tensor(tensor, element)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _narrow_graph(attribute.g, element)
            elif attribute.type == AttributeProto.TENSOR:
                _narrow_tensor(attribute.t, element)
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.DOUBLE:
                attribute.i = element


def _narrow_tensor(tensor: TensorProto, element: int) -> None:
    if tensor.data_type == TensorProto.DOUBLE:
        dtype = helper.tensor_dtype_to_np_dtype(element)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))


def _narrow_type(type_: TypeProto, element: int) -> None:
    if type_.HasField("sequence_type"):
        _narrow_type(type_.sequence_type.elem_type, element)
    elif type_.HasField("optional_type"):
        _narrow_type(type_.optional_type.elem_type, element)
    elif type_.tensor_type.elem_type == TensorProto.DOUBLE:
        type_.tensor_type.elem_type = element
