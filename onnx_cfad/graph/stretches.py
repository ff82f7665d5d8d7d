"""The factors of a Resize, and the lengths that they give.

5 · 1.8 in float32 is 8.9999998: ONNX's shape inference and reference evaluator round down to 8. ONNX Runtime 1.32
multiplies in float32, gets 9, and makes 9 elements of which it expects 8, as do the exporters, who write 1.8 for 9 / 5.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir


@dataclasses.dataclass(frozen=True)
class Stretch:
    """One axis of a Resize.

    Attributes:
        axis: Which one.
        length: Its length; None where only the run knows it.
        factor: The factor.
    """

    axis: int

    length: int | None
    factor: np.float32

    @property
    def rounded(self) -> int | None:
        """The new length in ONNX Runtime."""
        return None if self.length is None else int(np.float32(self.length) * self.factor)

    @property
    def is_ambiguous(self) -> bool:
        """Whether the exact product is rounded down to something else."""
        return self.length is not None and self.rounded != math.floor(self.length * float(self.factor))

    @property
    def is_quotient(self) -> bool:
        """Whether sizes say the same."""
        if self.length is None or self.rounded is None or not self.length:
            return False
        return bool(np.float32(self.rounded) / np.float32(self.length) == self.factor)

    @property
    def above(self) -> np.float32:
        """The factor, or the next one whose product is at least the new length."""
        return np.nextafter(self.factor, np.float32(np.inf)) if self.is_ambiguous else self.factor


def stretches(node: ir.Node) -> list[Stretch] | None:
    """The axes of a Resize by known factors; None for anything else."""
    if node.op_type != "Resize" or len(node.inputs) < 3 or node.inputs[0] is None or node.inputs[0].shape is None:
        return None
    scales = node.inputs[2]
    if scales is None or scales.is_graph_input():
        return None
    tensor, shape = ir.convenience.get_const_tensor(scales), node.inputs[0].shape
    if tensor is None or not tensor.size or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return None
    axes = node.attributes.get_ints("axes", tuple(range(shape.rank())))
    lengths = [shape[axis] for axis in axes]
    return [
        Stretch(axis, length if isinstance(length, int) else None, factor)
        for axis, length, factor in zip(axes, lengths, tensor.numpy().astype(np.float32), strict=True)
    ]
