"""Shapes that hold for every size that a symbolic dimension may have."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import onnx_shape_inference as osi
import pytest

from onnx_cfad.graph.certain_shapes import keep_certain

SYMBOL = "n"


def value(name: str, dims: list[int | str] | None, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=None if dims is None else ir.Shape(dims))


def constant(name: str, numbers: list[int]) -> ir.Value:
    tensor = ir.Tensor(np.asarray(numbers, np.int64), name=name)
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=tensor.shape, const_value=tensor)


def known(operand: ir.Value | None) -> np.ndarray | None:
    tensor = None if operand is None else operand.const_value
    return None if tensor is None else tensor.numpy()


def inferred(node: ir.Node) -> ir.Value:
    """The output of ``node`` after inference and correction."""
    osi.registry.collect()
    context = osi.ShapeInferenceContext({"": 21}, policy="override")
    infer = osi.registry.get("", node.op_type, version=21)
    assert infer is not None
    infer(context, node)
    numbers = itertools.count()
    keep_certain(node, known, lambda: ir.SymbolicDim(f"fresh_{next(numbers)}"))
    return node.outputs[0]


def dims_of(output: ir.Value) -> list[object] | None:
    """Numbers and the symbol n as they are; None for a dimension that is not known."""
    if output.shape is None:
        return None
    return [d if isinstance(d, int) else SYMBOL if d.value == SYMBOL else None for d in output.shape.dims]


@pytest.mark.parametrize(
    ("dims", "axes", "expected"),
    [
        ([1, 3, 1], None, [3]),
        ([1, SYMBOL], None, None),
        ([1, 3], [], None),
        ([2, SYMBOL], [], None),
        ([2, 3], [], [2, 3]),
        ([1, SYMBOL], [0], [SYMBOL]),
        ([1, SYMBOL], "computed", [None]),
        ([1, SYMBOL], "unknown", None),
    ],
)
def test_squeeze(dims: list[int | str], axes: list[int] | str | None, expected: list[object] | None) -> None:
    operands = [value("x", dims)]
    if isinstance(axes, list):
        operands.append(constant("axes", axes))
    elif axes is not None:
        operands.append(value("axes", [1] if axes == "computed" else ["k"], ir.DataType.INT64))
    assert dims_of(inferred(ir.Node("", "Squeeze", operands))) == expected


@pytest.mark.parametrize(
    ("starts", "ends", "steps", "expected"),
    [
        ([0], [9], [1], [None, 4]),
        ([0], [1], [1], [1, 4]),
        ([7], [9], [1], [None, 4]),
        ([0], [9], [2], [None, 4]),
        ([0], [2**63 - 1], [1], [SYMBOL, 4]),
        ([1], [2], [1], [None, 4]),
        ([0], [-(2**63)], [1], [0, 4]),
        ([0], [-(2**31)], [1], [0, 4]),
        ([0], [9], "computed", [None, 4]),
        ([1], [-1], "computed", [None, 4]),
    ],
)
def test_slice_of_a_symbolic_dimension(
    starts: list[int], ends: list[int], steps: list[int] | str, expected: list[object]
) -> None:
    by = constant("t", steps) if isinstance(steps, list) else value("t", [1], ir.DataType.INT64)
    bounds = [constant("s", starts), constant("e", ends), constant("a", [0]), by]
    assert dims_of(inferred(ir.Node("", "Slice", [value("x", [SYMBOL, 4]), *bounds]))) == expected


def test_slice_of_a_known_dimension_is_kept() -> None:
    bounds = [constant("s", [1, 0]), constant("e", [9, 2])]
    assert dims_of(inferred(ir.Node("", "Slice", [value("x", [5, 4]), *bounds]))) == [4, 2]


@pytest.mark.parametrize("length", range(5))
def test_slices_of_a_known_dimension(length: int) -> None:
    """As ONNX Runtime has it: NumPy's, but backwards from before the first element begins with that one."""
    numbers = np.arange(length)
    for start, end, step in itertools.product(range(-6, 7), range(-6, 7), (-3, -1, 1, 2)):
        first = 0 if step < 0 and start + length < 0 else start
        bounds = [constant(name, [n]) for name, n in zip("seat", (start, end, 0, step), strict=True)]
        expected = [numbers[first:end:step].size]
        assert dims_of(inferred(ir.Node("", "Slice", [value("x", [length]), *bounds]))) == expected, bounds


def test_pads_of_computed_axes_are_of_any_axis() -> None:
    node = ir.Node("", "Pad", [value("x", [3, 4]), constant("p", [1, 0, 2, 0]), None, value("a", [2])])
    assert dims_of(inferred(node)) == [None, None]


def test_compress_along_an_axis_needs_the_rank() -> None:
    chosen = value("c", [2], ir.DataType.BOOL)
    assert dims_of(inferred(ir.Node("", "Compress", [value("x", None), chosen], [ir.AttrInt64("axis", 0)]))) is None
    assert dims_of(inferred(ir.Node("", "Compress", [value("x", None), chosen]))) == [None]


def test_numbers_of_a_pooling_with_ceil_mode_are_as_uncertain_as_its_result() -> None:
    attributes = [ir.AttrInt64s("kernel_shape", [2]), ir.AttrInt64s("strides", [3]), ir.AttrInt64("ceil_mode", 1)]
    node = ir.Node("", "MaxPool", [value("x", [2, 3, SYMBOL])], attributes, num_outputs=2)
    inferred(node)
    lengths = [output.shape[2] for output in node.outputs if output.shape is not None]
    assert [isinstance(n, ir.SymbolicDim) and str(n.value).startswith("fresh") for n in lengths] == [True, True]


def test_unique_along_an_axis_keeps_the_others() -> None:
    node = ir.Node("", "Unique", [value("x", [SYMBOL, 4])], [ir.AttrInt64("axis", -2)])
    assert dims_of(inferred(node)) == [None, 4]


def test_reshape_to_an_unknown_rank_keeps_the_element_type() -> None:
    node = ir.Node("", "Reshape", [value("x", [2, 3]), value("shape", ["r"], ir.DataType.INT64)])
    assert inferred(node).dtype == ir.DataType.FLOAT


def test_slice_by_computed_bounds_keeps_the_other_axes() -> None:
    bounds = [value("s", [1], ir.DataType.INT64), value("e", [1], ir.DataType.INT64), constant("a", [1])]
    assert dims_of(inferred(ir.Node("", "Slice", [value("x", [SYMBOL, 4, 3]), *bounds]))) == [SYMBOL, None, 3]
