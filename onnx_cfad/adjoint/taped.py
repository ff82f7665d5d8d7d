"""A loop run backwards over a full tape: every residual of every iteration is kept.

Other names: store-all, naive reverse accumulation. Memory O(N * |residuals|) for N trips, time one forward and one
reverse pass. Loop and Scan are one mechanism: the reverse pass is a Scan over the reversed tape (ONNX Runtime reads a
Scan input without copying it), or a Loop where a carry is a sequence or changes shape, which no Scan can carry.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.reversal import Reversal
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.errors import PlanError

NARROW = {"": None, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
"""Element types that a tape may be narrowed to, by name."""


@dataclasses.dataclass(frozen=True)
class Taped(Adjoint):
    """Full tape: values of every iteration are stacked by the forward pass and read back in reverse order.

    Attributes:
        tape: "" to tape values as they are; "float16" (relative error 2^-11 of a taped value, range 65,504) or
            "bfloat16" (2^-8, the range of float32) to tape wider values in half the bytes.
    """

    tape: str = ""

    def __post_init__(self) -> None:
        if self.tape not in NARROW:
            raise PlanError(f"tape '{self.tape}'", "expected float16 or bfloat16", "Leave it out for an exact tape.")

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        del in_loop
        Reversal(sweep, node, cotangents, narrow=NARROW[self.tape]).run()
