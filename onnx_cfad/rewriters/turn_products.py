"""Makes the transpose of a product at once: the product of the factors in the other order."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.rewriters.added_nodes import AddedNodesPass


class TurnProductsPass(AddedNodesPass):
    """Takes the Transpose off a product that nothing else reads, of those that a transformation added, at every depth.

    Given ``p = Gemm <transA = 1> (x, c); w = Transpose <perm = [1, 0]> (p)``, the result is
    ``w = Gemm <transA = 1> (c, x)``. So comes the gradient of a weight that an exporter transposes before the product.
    """

    operator = "Transpose"

    def rewrite(self, node: ir.Node) -> bool:
        """See ``AddedNodesPass.rewrite``."""
        product, perm, graph = _product_of(node), node.attributes.get("perm"), node.graph
        if product is None or graph is None or product in self._kept or product.graph is not graph:
            return False
        if perm is not None and list(perm.as_ints()) != [1, 0]:
            return False
        attributes = [
            ir.AttrFloat32("alpha", product.attributes.get_float("alpha", 1.0)),
            ir.AttrInt64("transA", 1 - product.attributes.get_int("transB", 0)),
            ir.AttrInt64("transB", 1 - product.attributes.get_int("transA", 0)),
        ]
        new = ir.Node("", "Gemm", product.inputs[::-1], attributes, name=product.name)
        ir.convenience.replace_nodes_and_values(graph, node, [node, product], [new], node.outputs, new.outputs)
        return True


def _product_of(node: ir.Node) -> ir.Node | None:
    """The product of two matrices that ``node`` alone reads."""
    value = node.inputs[0]
    product = None if value is None else value.producer()
    if value is None or product is None or product.op_type != "Gemm" or len(product.inputs) != 2:
        return None
    return product if len(value.uses()) == 1 and not value.is_graph_output() else None
