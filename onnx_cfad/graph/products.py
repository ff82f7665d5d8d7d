"""Matrix products whose results are small against the work they take: better kept for a replay than computed again."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.cost import bytes_of

_WORTH = 256  # operations for each byte of the result; a product of float32 reaches it at an inner dimension of 512


def dear_products(body: ir.Graph) -> list[ir.Value]:
    """The products in ``body``, or the sums they alone go into, that take many operations for each byte.

    Products and sums of static shape count; products in branches and loops inside do not.
    """
    work: dict[ir.Value, int] = {}
    for node in body:
        output = node.outputs[0] if len(node.outputs) == 1 else None
        if output is None or output.shape is None or not output.shape.is_static() or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in {"MatMul", "Gemm"}:
            work[output] = _operations(node, output)
        elif node.op_type in {"Add", "Sub"}:
            parts = [v for v in node.inputs if v in work and v.shape == output.shape and len(v.uses()) == 1]
            if parts:
                work[output] = sum(map(work.pop, parts))
    return [v for v, operations in work.items() if operations >= _WORTH * bytes_of(v) and not v.is_graph_output()]


def _operations(node: ir.Node, output: ir.Value) -> int:
    """Multiplications and additions of a product; 0 where its inner dimension is not known."""
    left = node.inputs[0]
    if left is None or left.shape is None or left.shape.rank() == 0 or output.shape is None:
        return 0
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0)
    inner = left.shape[0 if transposed else -1]
    elements = bytes_of(output) // max(int(output.dtype.itemsize), 1) if output.dtype is not None else 0
    return 2 * inner * elements if isinstance(inner, int) else 0
