"""Makes initializers of the Constants that a transformation added: a constant that is declared needs no node."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.walk import nodes_of


class LiftConstantsPass(ir.passes.InPlacePass):
    """Declares constants in the scope of the Constant that made them, at every depth.

    Given ``k = Constant <value = {2.0}> (); y = Mul (x, k)``, the result is an initializer k and ``y = Mul (x, k)``.

    Constants that a graph returns stay: a body returns what a node of it makes. So do those of the author.

    Args:
        kept: Nodes to leave alone.
    """

    def __init__(self, kept: Collection[ir.Node | ir.Value]) -> None:
        super().__init__()
        self._kept = kept

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every node once."""
        added = [n for n in nodes_of(model.graph) if n.op_type == "Constant" and n not in self._kept]
        return ir.passes.PassResult(model, sum(map(_lift, added)) > 0)


def _lift(node: ir.Node) -> bool:
    value, graph = node.outputs[0], node.graph
    dense = "sparse_value" not in node.attributes
    tensor = ir.convenience.get_const_tensor(value) if dense else None
    if tensor is None or graph is None or value.is_graph_output():
        return False
    lifted = ir.Value(
        name=value.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.numpy().shape), const_value=tensor
    )
    lifted.metadata_props.update(value.metadata_props)
    value.replace_all_uses_with(lifted)
    graph.remove(node, safe=True)
    value.name = None
    graph.initializers.add(lifted)
    return True
