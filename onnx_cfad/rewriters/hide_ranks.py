"""Hides the rank of the elements of a list from a Loop that adds elements of other ranks to it.

Given (``x`` is a scalar, the body inserts vectors)::

    s = SequenceConstruct (x)   r = Loop (n, c, s) <...>

Result::

    s = SequenceConstruct (x)   t = SequenceInsert (s, [0], 0)   u = SequenceErase (t, 0)   r = Loop (n, c, u) <...>

The shape inference of onnx 1.23 takes the elements that enter a Loop for those that leave it. What a scalar and a
vector have in common is nothing, so that it says nothing of ``u``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import Carry, is_loop, loop_site
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder


class HideRanksPass(ir.passes.InPlacePass):
    """Visits every Loop, at any depth, whose types have been inferred."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites the initial values of such lists."""
        namer, modified = Namer.on_demand(model), False
        for node in nodes_of(model.graph):
            for carry in loop_site(node).carries if is_loop(node) else ():
                if _is_mixed(carry):
                    _hide(node, carry.initial, namer)
                    modified = True
        return ir.passes.PassResult(model, modified)


def _is_mixed(carry: Carry) -> bool:
    unknown = carry.entry.shape is None and carry.exit.shape is None
    return isinstance(carry.initial.type, ir.SequenceType) and unknown and carry.initial.shape is not None


def _hide(node: ir.Node, initial: ir.Value, namer: Namer) -> None:
    assert initial.shape is not None
    assert node.graph is not None
    record = Recorder(namer, "list")
    other = record.constant(np.zeros(() if initial.shape.rank() else 1), initial.dtype)
    zero = record.constant(np.int64(0))
    longer = record.SequenceInsert(initial, other, zero)
    hidden = record.SequenceErase(longer, zero)
    longer.type = hidden.type = initial.type
    node.replace_input_with(next(k for k, value in enumerate(node.inputs) if value is initial), hidden)
    node.graph.insert_before(node, record.nodes)
