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

from onnx_cfad.adjoint.expr import Builder, Expr, loop, op


def can_pack(value: ir.Value) -> bool:
    """Whether ``value`` is a sequence of tensors of one known rank."""
    return isinstance(value.type, ir.SequenceType) and value.shape is not None and value.dtype is not None


def pack(sequence: Expr) -> list[Expr]:
    """The tensors that hold ``sequence``: one stack, or the elements end to end and their shapes ([elements, rank])."""
    shape, builder = _shape_of(sequence.value), sequence.builder
    dtype = _dtype_of(sequence.value)
    if shape.is_static():
        row = builder.constant(np.zeros(shape.numpy()), dtype)
        whole = op.ConcatFromSequence(op.SequenceInsert(sequence, row, builder.constant(0)), axis=0, new_axis=1)
        whole.value.shape = ir.Shape([None, *shape.dims])
        return [whole]

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        element = op.SequenceAt(inner.expr(sequence.value), index)
        element.value.shape = ir.Shape([None] * shape.rank())
        dims = op.Shape(element)
        dims.value.shape = ir.Shape([shape.rank()])
        return [op.SequenceInsert(carries[0], op.Reshape(element, [-1]))], [dims]

    front = op.SequenceConstruct(builder.constant(np.zeros(1), dtype))
    (parts,), (shapes,) = loop(op.SequenceLength(sequence), body, [front], name="pack")
    shapes.value.shape = ir.Shape([None, shape.rank()])
    data = op.ConcatFromSequence(parts, axis=0)
    data.value.shape = ir.Shape([None])
    return [data, shapes]


def unpack(tensors: Sequence[Expr], value: ir.Value) -> Expr:
    """The sequence that ``pack`` made ``tensors`` from, of the type and shape of ``value``."""
    builder, rank = tensors[0].builder, _shape_of(value).rank()
    if len(tensors) == 1:
        parts = op.SplitToSequence(tensors[0], None, axis=0, keepdims=0)
        return op.SequenceErase(parts, builder.constant(0))
    data, shapes = tensors

    def body(inner: Builder, index: Expr, carries: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        elements, start = carries
        dims = op.Gather(inner.expr(shapes.value), index)
        dims.value.shape = ir.Shape([rank])
        size = op.ReduceProd(dims, keepdims=1) if rank else inner.constant(np.ones(1, np.int64))
        end = start + size
        element = op.Reshape(op.Slice(inner.expr(data.value), start, end, inner.constant([0])), dims, allowzero=1)
        element.value.shape = ir.Shape([None] * rank)
        return [op.SequenceInsert(elements, element), end], []

    dtype = _dtype_of(value)
    of_it = ir.SequenceType(ir.TensorType(dtype))
    (empty,) = builder.call("SequenceEmpty", [], {"dtype": int(dtype)}, types=[of_it])
    count = op.Shape(shapes, start=0, end=1).squeeze([0])
    (elements, _), _ = loop(count, body, [empty, builder.constant(np.ones(1, np.int64))], name="unpack")
    elements.value.shape = value.shape
    return elements


def _shape_of(value: ir.Value) -> ir.Shape:
    assert value.shape is not None
    return value.shape


def _dtype_of(value: ir.Value) -> ir.DataType:
    assert isinstance(value.type, ir.SequenceType)
    return value.type.elem_type.dtype
