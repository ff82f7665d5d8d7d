"""One adapter for each way in which an operator changed between opset 7 and 18 (and what inlining can mix above it).

Left out are changes that only allow more: new element types, new optional attributes whose default is the old
behaviour, negative axes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.opsets import Edit, before


@before(13, "Squeeze", "Unsqueeze", "ReduceSum")
@before(18, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin")
@before(18, "ReduceProd", "ReduceSumSquare")
def axes_to_input(edit: Edit) -> None:
    """``axes`` was an attribute."""
    axes = edit.take("axes")
    if axes:
        edit.set_inputs(edit.x, edit.constant(axes))


@before(13, "Split")
def split_sizes_to_input(edit: Edit) -> None:
    """``split`` was an attribute."""
    sizes = edit.take("split")
    if sizes:
        edit.set_inputs(edit.x, edit.constant(sizes))


@before(18, "Split")
def split_count(edit: Edit) -> None:
    """The number of equal parts followed from the number of outputs."""
    if edit.input(1) is None and "num_outputs" not in edit.node.attributes:
        edit.set("num_outputs", len(edit.node.outputs))


@before(10, "Slice")
def slice_bounds_to_inputs(edit: Edit) -> None:
    """``starts``, ``ends`` and ``axes`` were attributes."""
    starts, ends, axes = edit.take("starts"), edit.take("ends"), edit.take("axes")
    edit.set_inputs(edit.x, edit.constant(starts), edit.constant(ends), edit.constant(axes) if axes else None)


@before(10, "TopK")
def topk_count_to_input(edit: Edit) -> None:
    """``k`` was an attribute."""
    edit.set_inputs(edit.x, edit.constant([edit.take("k")]))


@before(11, "Clip")
def clip_bounds_to_inputs(edit: Edit) -> None:
    """``min`` and ``max`` were attributes."""
    bounds = edit.take("min"), edit.take("max")
    edit.set_inputs(edit.x, *(None if bound is None else edit.constant_like(bound, edit.x) for bound in bounds))


@before(11, "Pad")
def pad_widths_to_inputs(edit: Edit) -> None:
    """``pads`` and ``value`` were attributes."""
    pads, value = edit.constant(edit.take("pads")), edit.take("value", 0.0)
    edit.set_inputs(edit.x, pads, edit.constant_like(value, edit.x) if value else None)


@before(12, "Dropout")
def dropout_ratio_to_input(edit: Edit) -> None:
    """``ratio`` was an attribute; outside of training, which older opsets do not know, it has no effect."""
    edit.take("ratio")
    if len(edit.node.outputs) < 2:
        return
    if edit.node.outputs[1].uses() or edit.node.outputs[1].is_graph_output():
        raise edit.refusal("its mask is used, which older opsets leave undefined outside of training")
    edit.node.resize_outputs(1)


@before(9, "BatchNormalization")
def batch_normalization_per_element(edit: Edit) -> None:
    """With ``spatial=0``, every element of a sample had statistics of its own."""
    if edit.take("spatial", 1):
        return
    _only_first_output(edit)
    x, scale, bias, mean, variance = edit.inputs
    epsilon = edit.take("epsilon", 1e-5)
    assert variance is not None
    deviation = edit.insert("Sqrt", [edit.insert("Add", [variance, edit.constant_like(epsilon, variance)])])
    normalized = edit.insert("Div", [edit.insert("Sub", [x, mean]), deviation])
    edit.become("Add", edit.insert("Mul", [normalized, scale]), bias)


@before(14, "BatchNormalization")
def batch_normalization_mode(edit: Edit) -> None:
    """More than one output used to mean training."""
    _only_first_output(edit)


def _only_first_output(edit: Edit) -> None:
    if any(output.uses() or output.is_graph_output() for output in edit.node.outputs[1:]):
        raise edit.refusal("it is in training mode")
    edit.node.resize_outputs(1)


@before(13, "Softmax", "LogSoftmax", "Hardmax")
def softmax_over_trailing_axes(edit: Edit) -> None:
    """The input was flattened to a matrix at ``axis`` (1 unless given), and the operator ran over its rows."""
    x, axis = edit.x, edit.take("axis", 1)
    if axis == -1 or (x.shape is not None and axis == x.shape.rank() - 1):
        edit.set("axis", -1)
        return
    op_type, name = edit.node.op_type, edit.node.name
    shape = edit.insert("Shape", [x])
    rows = edit.insert(op_type, [edit.insert("Flatten", [x], axis=axis)], axis=-1)
    edit.become("Reshape", rows, shape, allowzero=1)
    edit.node.name = f"{name}/Reshape" if name else name


@before(16, "RoiAlign")
def roi_align_without_half_pixel(edit: Edit) -> None:
    """Coordinates were not shifted by half a pixel."""
    edit.set("coordinate_transformation_mode", "output_half_pixel")


@before(18, "Scatter")
def scatter_elements(edit: Edit) -> None:
    """``Scatter`` became ``ScatterElements``."""
    edit.node.op_type = "ScatterElements"


@before(18, "Upsample")
def upsample_to_resize(edit: Edit) -> None:
    """``scales`` was an attribute in opset 7; ``Resize`` took the operator's place."""
    scales = edit.take("scales")
    factors = edit.constant(scales, np.float32) if scales else edit.input(1)
    _become_resize(edit, factors, str(edit.take("mode", "nearest")), "floor")


@before(11, "Resize")
def resize_without_modes(edit: Edit) -> None:
    """Before the modes existed, the nearest element was rounded down when enlarging and up when reducing."""
    factors, mode = edit.input(1), str(edit.take("mode", "nearest"))
    known = None
    if factors is not None and not factors.is_graph_input():
        known = ir.convenience.get_const_tensor(factors)
    enlarges = known is not None and bool(np.all(known.numpy() >= 1))
    if mode != "nearest" or enlarges or factors is None:
        _become_resize(edit, factors, mode, "floor")
        return
    # The axes are independent: those that grow first, then those that shrink.
    one = edit.constant(1, np.float32)
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    grown = edit.insert(
        "Resize", [edit.x, None, edit.insert("Max", [factors, one])], nearest_mode="floor", **attributes
    )
    edit.become("Resize", grown, None, edit.insert("Min", [factors, one]), nearest_mode="ceil", **attributes)


def _become_resize(edit: Edit, factors: ir.Value | None, mode: str, nearest: str) -> None:
    attributes = {"nearest_mode": nearest} if mode == "nearest" else {}
    edit.become("Resize", edit.x, None, factors, mode=mode, coordinate_transformation_mode="asymmetric", **attributes)


@before(13, "Resize")
def resize_with_empty_inputs(edit: Edit) -> None:
    """Absent inputs used to be given as empty tensors, and one coordinate mode was removed."""
    if edit.input(3) is not None:
        edit.set_inputs(edit.x, edit.input(1), None, edit.input(3))
    mode = edit.node.attributes.get("coordinate_transformation_mode")
    if mode is None or mode.as_string() != "tf_half_pixel_for_nn":
        return
    nearest = edit.take("nearest_mode", "round_prefer_floor")
    if nearest != "floor" or edit.take("mode", "nearest") != "nearest":
        raise edit.refusal(f"coordinate_transformation_mode tf_half_pixel_for_nn with nearest_mode {nearest}")
    # floor(v) = round(v - 1/2) with halves rounded up, and v - 1/2 is what half_pixel computes.
    edit.set("coordinate_transformation_mode", "half_pixel")
    edit.set("nearest_mode", "round_prefer_ceil")


@before(20, "GridSample")
def grid_sample_mode_names(edit: Edit) -> None:
    """The interpolation modes were named after the two-dimensional case."""
    mode = edit.take("mode", "bilinear")
    edit.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@before(20, "DFT")
def dft_axis_to_input(edit: Edit) -> None:
    """``axis`` was an attribute, 1 unless given."""
    edit.set_inputs(edit.x, edit.input(1), edit.constant(edit.take("axis", 1)))


@before(21, "GroupNormalization")
def group_normalization_per_channel(edit: Edit) -> None:
    """``scale`` and ``bias`` had one element for each group instead of each channel."""
    groups = edit.constant([edit.node.attributes["num_groups"].as_int()])
    channels = edit.insert("Shape", [edit.x], start=1, end=2)
    repeats = edit.insert("Concat", [edit.constant([1]), edit.insert("Div", [channels, groups])], axis=0)
    column, flat = edit.constant([-1, 1]), edit.constant([-1])

    def spread(value: ir.Value | None) -> ir.Value:
        return edit.insert("Reshape", [edit.insert("Tile", [edit.insert("Reshape", [value, column]), repeats]), flat])

    edit.set_inputs(edit.x, spread(edit.input(1)), spread(edit.input(2)))
