"""Keeps ONNX Runtime from folding tensors of one number in a model with branches."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnx_cfad.graph.alike import constant_key
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.names import Namer


class KeepUnfoldedPass(ir.passes.InPlacePass):
    """Has an Expand of constants read a number that is none, where an If stands in front of it in the main graph.

    Given ``y = If (p) <...>; z = Expand (c, shape)``, the result is ``y = If (p) <...>; d = Where (p, c, c); z = Expand
    (d, shape)``: the same number, whichever it chooses.

    ONNX Runtime 1.32 folds what follows from constants. It would give every branch zeros of its own, in place of those
    that a gradient computes once for all of them, and go through all of its optimisations, in all branches, once more.

    Args:
        primal: The nodes that are left alone.
        namer: For the names of what is put in.
    """

    def __init__(self, primal: Container[ir.Node], namer: Namer) -> None:
        super().__init__()
        self._primal, self._namer = primal, namer

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Looks at the main graph only: in a loop, what is folded is not computed in every iteration."""
        predicate: ir.Value | None = None
        chosen: dict[object, ir.Value] = {}
        for node in list(model.graph):
            if predicate is None and is_branch(node):
                predicate = _varying(node)
            elif predicate is not None and node.op_type == "Expand" and node not in self._primal:
                keys = [None if value is None else constant_key(value) for value in node.inputs]
                number = node.inputs[0]
                if None not in keys and number is not None and number.shape is not None and not number.shape.rank():
                    if keys[0] not in chosen:
                        chosen[keys[0]] = _chosen(node, predicate, number, self._namer)
                    node.replace_input_with(0, chosen[keys[0]])
        return ir.passes.PassResult(model, bool(chosen))


def _varying(node: ir.Node) -> ir.Value | None:
    """The predicate of an If, where it is a scalar that the run decides."""
    predicate = branch_site(node).predicate
    is_scalar = predicate.shape is not None and not predicate.shape.rank()
    return predicate if is_scalar and constant_key(predicate) is None else None


def _chosen(node: ir.Node, predicate: ir.Value, number: ir.Value, namer: Namer) -> ir.Value:
    """``number``, chosen in front of ``node`` between itself and itself."""
    where = ir.Node("", "Where", [predicate, number, number], name=namer.fresh("grad/Where"))
    result = where.outputs[0]
    result.name, result.type, result.shape = namer.fresh("grad/Where.out"), number.type, number.shape
    assert node.graph is not None
    node.graph.insert_before(node, where)
    return result
