"""Sequences kept as tensors, because no sequence holds sequences: what a loop tapes of a carried list.

Elements of one static shape are stacked. Others are laid end to end, with their shapes beside them. In front lies
something that is no element, because no operator joins an empty sequence.

Cost: the elements of the list, again in every iteration that needs it; a list that grows in each of N iterations takes
memory of O(N^2) elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.adjoint.subgraph_operators import loop


def pack(sequence: Expr) -> list[Expr]:
    """The tensors that hold ``sequence``: one stack; else the elements end to end, and their shapes ([elements, rank]).

    Shapes of several ranks lie end to end too, with their ranks ([elements]) beside them.
    """
    shape, builder = sequence.value.shape, sequence.builder
    dtype = _dtype_of(sequence.value)
    if shape is not None and shape.is_static():
        row = builder.constant(np.zeros(shape.numpy()), dtype)
        whole = op.ConcatFromSequence(op.SequenceInsert(sequence, row, builder.constant(0)), axis=0, new_axis=1)
        whole.value.shape = ir.Shape([None, *shape.dims])
        return [whole]
    one_rank = shape is not None

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        element = op.SequenceAt(inner.expr(sequence.value), index)
        element.value.shape = None if shape is None else ir.Shape([None] * shape.rank())
        dims = op.Shape(element)
        dims.value.shape = ir.Shape([None if shape is None else shape.rank()])
        parts = [op.SequenceInsert(carries[0], op.Reshape(element, [-1]))]
        rank = op.Squeeze(op.Shape(dims), [0])  # not its Size: see _sum_dynamic
        return (parts, [dims]) if one_rank else ([*parts, op.SequenceInsert(carries[1], dims)], [rank])

    fronts = [op.SequenceConstruct(builder.constant(np.zeros(1), dtype))]
    fronts += [] if one_rank else [op.SequenceConstruct(builder.constant(np.zeros(1, np.int64)))]
    lists, (stacked,) = loop(op.SequenceLength(sequence), body, fronts, name="pack")
    stacked.value.shape = ir.Shape([None] if shape is None else [None, shape.rank()])
    joined = [op.ConcatFromSequence(parts, axis=0) for parts in lists]
    for whole in joined:
        whole.value.shape = ir.Shape([None])
    return [*joined, stacked]


def unpack(tensors: Sequence[Expr], value: ir.Value) -> Expr:
    """The sequence that ``pack`` made ``tensors`` from, of the type and shape of ``value``."""
    builder, shape = tensors[0].builder, value.shape
    if len(tensors) == 1:
        parts = op.SplitToSequence(tensors[0], None, axis=0, keepdims=0)
        return op.SequenceErase(parts, builder.constant(0))
    data, shapes, ranks = tensors[0], tensors[1], tensors[-1]

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        elements, start, *at = carries
        if at:
            after = at[0] + op.Gather(inner.expr(ranks.value), index)
            dims = op.Slice(inner.expr(shapes.value), at[0], after, inner.constant([0]))
        else:
            after, dims = None, op.Gather(inner.expr(shapes.value), index)
        dims.value.shape = ir.Shape([None if shape is None else shape.rank()])
        # in front of shapes that may be empty stands a one: their product is that of nothing
        factors = dims if shape is not None and shape.rank() else concat([inner.constant(np.ones(1, np.int64)), dims])
        end = start + op.ReduceProd(factors, keepdims=1)
        element = op.Reshape(op.Slice(inner.expr(data.value), start, end, inner.constant([0])), dims, allowzero=1)
        element.value.shape = None if shape is None else ir.Shape([None] * shape.rank())
        return [op.SequenceInsert(elements, element), end, *([] if after is None else [after])], []

    dtype = _dtype_of(value)
    of_it = ir.SequenceType(ir.TensorType(dtype))
    (empty,) = builder.call("SequenceEmpty", [], {"dtype": int(dtype)}, types=[of_it])
    starts = [builder.constant(np.ones(1, np.int64)) for _ in tensors[1:]]
    count = op.Shape(ranks, start=0, end=1).squeeze([0])
    (elements, *_), _ = loop(count, body, [empty, *starts], name="unpack")
    elements.value.shape = value.shape
    return elements


def _dtype_of(value: ir.Value) -> ir.DataType:
    assert isinstance(value.type, ir.SequenceType)
    return value.type.elem_type.dtype
