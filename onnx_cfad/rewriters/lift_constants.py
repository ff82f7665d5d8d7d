"""Makes initializers of the Constants that a transformation added: a constant that is declared needs no node."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.rewriters.added_nodes import AddedNodesPass


class LiftConstantsPass(AddedNodesPass):
    """Declares constants in the scope of the Constant that made them, at every depth.

    Given ``k = Constant <value = {2.0}> (); y = Mul (x, k)``, the result is an initializer k and ``y = Mul (x, k)``.

    Constants that a graph returns stay: a body returns what a node of it makes. So do those of the author.
    """

    operator = "Constant"

    def rewrite(self, node: ir.Node) -> bool:
        """See ``AddedNodesPass.rewrite``."""
        return _lift(node)


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
