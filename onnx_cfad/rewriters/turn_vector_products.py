"""A transposed matrix times a vector, as the vector times the matrix.

ONNX Runtime 1.32 fuses Transpose and MatMul to its FusedMatMul, from the level "extended" on, and computes something
else where the right operand is a vector, without an error. The other way round is right.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer


class TurnVectorProductsPass(ir.passes.InPlacePass):
    """Makes ``MatMul (Transpose (A), v)`` to ``MatMul (v, A)``, at every depth, also through a Cast of the Transpose.

    A stands for one matrix or several, of which the Transpose exchanges the last two axes; v is a vector. A Transpose
    in another scope is fused with nothing, and one of a constant is computed when the session is created: both stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every product once, those of functions too."""
        changed, namer = False, Namer.on_demand(model)
        for owner in (model.graph, *model.functions.values()):
            for node in nodes_of(owner):
                if is_miscomputed(node) and _rank(node.inputs[1]) == 1:
                    _turn(node, namer)
                    changed = True
        return ir.passes.PassResult(model, changed)


def is_miscomputed(node: ir.Node) -> bool:
    """Whether ``node`` is a product with a transposed left operand, which goes wrong where the right is a vector."""
    if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx") or len(node.inputs) != 2:
        return False
    turned = _maker(node.inputs[0], node)
    turned = _maker(turned.inputs[0], node) if turned is not None and turned.op_type == "Cast" else turned
    if turned is None or turned.op_type != "Transpose" or turned.inputs[0] is None:
        return False
    constant = turned.inputs[0].is_initializer() and not turned.inputs[0].is_graph_input()
    return not constant and _exchanges_last_two(turned)


def _turn(node: ir.Node, namer: Namer) -> None:
    left, vector = node.inputs
    assert left is not None
    maker = left.producer()
    assert maker is not None
    if maker.op_type == "Transpose":
        matrix = maker.inputs[0]
    else:
        turned, matrix = maker.inputs[0], None
        assert turned is not None
        transpose = turned.producer()
        assert transpose is not None
        assert node.graph is not None
        attributes = list(maker.attributes.values())
        cast = ir.Node("", "Cast", [transpose.inputs[0]], attributes, name=namer.fresh("matrix/Cast"))
        matrix = cast.outputs[0]
        matrix.name, matrix.type = namer.fresh(f"{left.name}.matrix"), left.type
        node.graph.insert_before(node, cast)
    node.replace_input_with(0, vector)
    node.replace_input_with(1, matrix)


def _maker(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """The node of the same scope that makes ``value``."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.graph is reader.graph else None


def _exchanges_last_two(node: ir.Node) -> bool:
    permutation = node.attributes.get("perm")
    if permutation is None:
        return _rank(node.inputs[0]) in (None, 2)
    order = list(permutation.as_ints())
    rank = len(order)
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else value.shape.rank()
