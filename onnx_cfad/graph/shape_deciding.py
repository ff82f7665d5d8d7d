"""Which inputs of a straight-line graph decide, by their values, the shapes of what is computed inside it."""

from __future__ import annotations

import onnx_ir as ir

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)

_BY_VALUE = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4),
    "Pad": (1, 3), "Squeeze": (1,), "Unsqueeze": (1,), "Split": (1,), "TopK": (1,), "OneHot": (1,), "Resize": (3,),
    "NonZero": (0,), "Compress": (1,), "Trilu": (1,), "CumSum": (1,), "Upsample": (1,), "CenterCropPad": (1,),
    **{f"Reduce{name}": (1,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum",
                                          "SumSquare")},
}  # fmt: skip
"""Operators whose result has a shape that depends on the values of inputs, and the positions of those."""


def shape_deciding_inputs(graph: ir.Graph) -> tuple[int, ...]:
    """The positions of the integer and boolean inputs whose values decide shapes or axes, ascending.

    The types of the graph have been inferred, and what constants fix is folded; an input that only gives its shape
    does not count.
    """
    asked: list[ir.Value] = []
    for node in graph:
        positions = _BY_VALUE.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        asked.extend(value for k in positions if k < len(node.inputs) and (value := node.inputs[k]) is not None)
    found: set[ir.Value] = set()
    while asked:
        value = asked.pop()
        node = value.producer()
        if value in found or value.dtype not in _INTEGERS:
            continue
        found.add(value)
        if node is not None and node.op_type not in {"Shape", "Size"}:
            asked.extend(v for v in node.inputs if v is not None)
    return tuple(position for position, value in enumerate(graph.inputs) if value in found)
