"""Sparse tensors of a model, made dense: operators read them so, and ONNX Runtime stores them so."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from onnx_cfad.errors import ModelError

_MOST = 2**30
"""Bytes that all sparse tensors of a model may have when they are dense."""


def make_dense(proto: onnx.ModelProto, where: str) -> None:
    """Replaces sparse initializers and sparse values of Constants in place, at every depth and in functions.

    Indices are as in ONNX's SparseTensorProto: positions in the flat tensor [NNZ], or coordinates [NNZ, rank], in
    ascending order.

    Args:
        proto: Changed in place.
        where: For errors.

    Raises:
        ModelError: A sparse tensor contradicts itself, is of strings, is kept in another file, stands elsewhere, or all
            of them would be too large.
    """
    left = _MOST
    for owner in _owners(proto):
        if isinstance(owner, onnx.GraphProto) and owner.sparse_initializer:
            for sparse in owner.sparse_initializer:
                what = f"sparse initializer '{sparse.values.name}'"
                owner.initializer.append(_dense(sparse, where, what, left))
                left -= _size(sparse)
            del owner.sparse_initializer[:]
        for node in owner.node:
            for attribute in node.attribute:
                if not attribute.HasField("sparse_tensor"):
                    continue
                what = f"{node.op_type} '{', '.join(node.output)}'"
                if node.op_type != "Constant" or attribute.name != "sparse_value":
                    raise ModelError(where, f"{what} has a sparse attribute, which is not supported", "Make it dense.")
                dense = _dense(attribute.sparse_tensor, where, f"sparse constant of {what}", left)
                left -= _size(attribute.sparse_tensor)
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)


def _owners(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while pending:
        owner = pending.pop()
        yield owner
        for node in owner.node:
            for attribute in node.attribute:
                pending += ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)


def _size(sparse: onnx.SparseTensorProto) -> int:
    """Bytes of the dense tensor."""
    try:
        item = onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize
    except KeyError:
        item = 1
    return math.prod(sparse.dims) * item


def _dense(sparse: onnx.SparseTensorProto, where: str, what: str, most: int) -> onnx.TensorProto:
    values, dims = sparse.values, tuple(sparse.dims)
    if any(map(uses_external_data, (values, sparse.indices))):
        raise ModelError(where, f"the {what} is kept in another file, which is not supported", "Make it dense.")
    if values.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        raise ModelError(where, f"the {what} has no numbers", "Make it dense.")
    if any(dim < 0 for dim in dims) or _size(sparse) > most:
        remedy = f"All sparse tensors of a model may have {_MOST // 2**20:,} MiB when they are dense."
        raise ModelError(where, f"the {what} has the shape {list(dims)}, for which there is no room", remedy)
    try:
        numbers, indices = numpy_helper.to_array(values).reshape(-1), numpy_helper.to_array(sparse.indices)
        places = _places(indices, dims, numbers.size)
        flat = np.zeros(math.prod(dims), numbers.dtype)
        flat[places] = numbers
        return numpy_helper.from_array(flat.reshape(dims), values.name)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ModelError(where, f"the {what} contradicts itself: {error}", "Export the model again.") from error


def _places(indices: np.ndarray, dims: tuple[int, ...], count: int) -> np.ndarray:
    """The positions of the values in the flat tensor."""
    if indices.shape == (count, len(dims)) and indices.ndim > 1:
        places = np.asarray(np.ravel_multi_index(tuple(indices.T), dims) if count else [], np.int64)
    elif indices.shape == (count,):
        places = indices
    else:
        raise ValueError(f"it has {count} values and indices of the shape {list(indices.shape)}")
    if count and (places.min() < 0 or places.max() >= math.prod(dims)):
        raise ValueError("an index is outside of the tensor")
    if (np.diff(places) <= 0).any():
        raise ValueError("its indices are not in ascending order")
    return places
