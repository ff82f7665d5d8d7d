"""A Loop that goes on while its body says so, and the stagnation guard of solvers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op, where
from onnx_cfad.names import ADJOINT

Step = Callable[[Builder, list[Expr]], tuple[Expr, Sequence[Expr]]]
"""From the body's builder and the carries to whether the loop goes on, and the new carries (of the same shapes)."""


def iterate(
    limit: int, going: Expr, step: Step, carries: Sequence[Expr], *, name: str, adjoint: str = "taped"
) -> list[Expr]:
    """Runs ``step`` while it says so, at most ``limit`` times, not at all unless ``going``; gives the last carries.

    ``adjoint`` is how the loop is run backwards when the result is differentiated. No derivative passes through a
    solver, whose solution is the initial guess of a fixed point: nothing is gained by preparing its loops for one.
    """
    outer = going.builder
    inner = outer.child()
    int64, boolean = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)
    head = [inner.input(f"{name}.index", int64, ir.Shape([])), inner.input(f"{name}.going", boolean, ir.Shape([]))]
    states = [inner.input(f"{name}.carry", c.type, c.value.shape) for c in carries]
    again, results = step(inner, states)
    graph = inner.graph([e.value for e in (*head, *states)], [again, *results], name)
    outs = outer.call(
        "Loop",
        [outer.constant(np.int64(limit)), going, *carries],
        {"body": graph},
        types=[c.type for c in carries],
        outputs=len(carries),
    )
    for out, carry in zip(outs, carries, strict=True):
        out.value.shape = carry.value.shape
    node = outs[0].value.producer()
    assert node is not None
    node.metadata_props[ADJOINT] = adjoint
    return list(outs)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best iterate so far, and for how many iterations there was no better one: at the rounding floor, for ever.

    Attributes:
        vector: The iterate.
        error: Its residual (scalar).
        since: Iterations since the error last fell by a tenth (int64 scalar).
    """

    vector: Expr
    error: Expr
    since: Expr

    def carries(self) -> list[Expr]:
        """As carries of a loop."""
        return [self.vector, self.error, self.since]

    def updated(self, vector: Expr, error: Expr) -> Best:
        """After one more iterate; one whose error is NaN is no better."""
        better = op.Less(error, self.error)
        clearly = op.Less(error, self.error * 0.9)
        since = where(clearly, vector.builder.constant(np.int64(0)), op.Add(self.since, 1))
        kept = op.Where(better, vector, self.vector)
        kept.value.shape = vector.value.shape
        return Best(kept, op.Where(better, error, self.error), since)
