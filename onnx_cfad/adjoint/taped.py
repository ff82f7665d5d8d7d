"""A loop run backwards over a full tape: every residual of every iteration is kept, or the carries of every iteration.

Other names: store-all, naive reverse accumulation. Memory O(N * |residuals|) for N trips, time one forward and one
reverse pass. Loop and Scan are one mechanism: the reverse pass is a Scan over the reversed tape (ONNX Runtime reads a
Scan input without copying it), or a Loop where a carry is a sequence or changes shape, which no Scan can carry.

With ``keep="carry"`` the tape holds O(N * |carry|), and the reverse pass computes the residuals of an iteration again
from its carries, as it does from the checkpoints of segments of one iteration.
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

KEPT = ("", "carry")
"""What a tape may keep of an iteration: its residuals, or its carries alone."""


@dataclasses.dataclass(frozen=True)
class Taped(Adjoint):
    """Full tape: values of every iteration are stacked by the forward pass and read back in reverse order.

    Attributes:
        tape: "" to tape values as they are; "float16" (relative error 2^-11 of a taped value, range 65,504) or
            "bfloat16" (2^-8, the range of float32) to tape wider values in half the bytes.
        keep: "" to keep the residuals; "carry" to keep carries and what must not be computed again (decisions, random
            draws), and compute the rest again.
    """

    tape: str = ""
    keep: str = ""

    def __post_init__(self) -> None:
        if self.tape not in NARROW:
            raise PlanError(f"tape '{self.tape}'", "expected float16 or bfloat16", "Leave it out for an exact tape.")
        if self.keep not in KEPT:
            raise PlanError(f"keep '{self.keep}'", "expected carry", "Leave it out to keep the residuals.")

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        del in_loop
        Reversal(sweep, node, cotangents, carries_only=self.keep == "carry", narrow=NARROW[self.tape]).run()
