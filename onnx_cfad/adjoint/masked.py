"""A branch as straight-line code: both sides are computed, and the predicate selects values and cotangents.

Other names: predication, if-conversion, select form. Costs both branches, forward and backward, and no control flow:
for accelerators that have none, and for branches smaller than the cost of an If. The side that was not taken
contributes exactly zero, whatever it computes (see ``rewriters.predicate_branch``).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.graph.regions import label
from onnx_cfad.graph.types import Types
from onnx_cfad.rewriters.predicate_branch import predicate_branch


@dataclasses.dataclass(frozen=True)
class Masked(Adjoint):
    """Both branches, and Where: the reverse pass is that of the straight-line code."""

    def prepare(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """See ``Adjoint.prepare``: the If is replaced; the plan has asked ``why_not_masked`` of the model as it was."""
        del types
        made = predicate_branch(node, builder.namer)
        return Prepared(
            {}, guards=made.guards, selections=frozenset(made.selections), handed_on=frozenset(made.handed_on)
        )

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Never reached: no If is left."""
        del sweep, cotangents, in_loop
        raise AssertionError(f"{label(node)} was not prepared")
