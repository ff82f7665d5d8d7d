"""ONNX text as an ``ir.Model``, and its values and nodes by name."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir


def parsed(text: str, *, opset: int = 21) -> ir.Model:
    """The model of ``text``: inputs, outputs, initializers and nodes, without header and name."""
    header = f'<ir_version: 10, opset_import: ["": {opset}]> test '
    return ir.serde.deserialize_model(onnx.parser.parse_model(header + text))


def values(model: ir.Model) -> dict[str, ir.Value]:
    """Every value of every scope by name; of values that share a name, the last one."""
    found: dict[str, ir.Value] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in (*graph.inputs, *graph.initializers.values(), *(o for node in graph for o in node.outputs)):
            found[value.name or ""] = value
    return found


def nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    """The nodes of an operator in every scope, outer before inner."""
    return [node for node in model.graph.all_nodes() if node.op_type == op_type]


def dims(value: ir.Value) -> list[int | str | None] | None:
    """A shape as plain data: numbers, symbols, None for an unnamed dimension; None for an unknown rank."""
    return None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape.dims]
