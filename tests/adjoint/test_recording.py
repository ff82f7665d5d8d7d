"""What is recorded once, or not at all: layouts that are undone, shapes that are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.names import Namer


def builder() -> Builder:
    return Builder(Namer(set()), 21)


def tensor(dims: list[Any], name: str = "x") -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(dims))


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (lambda x: x.unsqueeze([0, 2]), lambda x: x.squeeze([0, 2])),
        (lambda x: x.squeeze([1]), lambda x: x.unsqueeze([1])),
        (lambda x: op.Transpose(x, perm=[1, 2, 0]), lambda x: op.Transpose(x, perm=[2, 0, 1])),
    ],
)
def test_layout_that_is_undone(there: Any, back: Any) -> None:
    x = builder().expr(tensor([2, 1, 3]))
    assert back(there(x)).value is x.value


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (lambda x: x.unsqueeze([0]), lambda x: x.squeeze([1])),
        (lambda x: op.Transpose(x, perm=[1, 2, 0]), lambda x: op.Transpose(x, perm=[1, 2, 0])),
    ],
)
def test_layout_that_is_another(there: Any, back: Any) -> None:
    x = builder().expr(tensor([1, 1, 3]))
    assert back(there(x)).value is not x.value


def test_shapes_by_the_same_names_are_asked_for_once() -> None:
    record = builder()
    first, second, third = (record.expr(tensor(d, n)) for d, n in ((["N", 3], "a"), (["N", 3], "b"), (["M", 3], "c")))
    assert first.shape.value is second.shape.value
    assert first.shape.value is not third.shape.value


def test_shapes_without_names_are_asked_for_each() -> None:
    record = builder()
    first, second = (record.expr(tensor([None, 3], name)) for name in ("a", "b"))
    assert first.shape.value is not second.shape.value


def test_padding_by_nothing_is_nothing() -> None:
    x: Expr = builder().expr(tensor([2, 3]))
    assert op.Pad(x, [0, 0, 0, 0]).value is x.value
    assert op.Pad(x, [0, 1, 0, 0]).value is not x.value


def test_count_becomes_a_number_at_once() -> None:
    count = builder().constant(np.asarray(12, np.int64)).cast(ir.DataType.FLOAT)
    assert count.const is not None
    assert count.const.dtype == np.float32
