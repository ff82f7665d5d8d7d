"""Scan as opset 8 had it, with a batch axis before the scan axis, as a Scan over the batch around a Scan of today."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.names import Namer
from onnx_cfad.opsets import BASE, Edit, before


@before(9, "Scan")
def scan_over_batch(edit: Edit) -> None:
    """A Scan over ``[batch, sequence, ...]`` becomes a Scan over the batch whose body is the Scan that was asked for.

    Raises:
        ModelError: Sequence lengths are given; what comes after the end of a short sequence was never specified.
    """
    if edit.input(0) is not None:
        raise edit.refusal("sequence lengths are given")
    operands = [value for value in edit.inputs[1:] if value is not None]
    body, count = edit.take("body"), edit.take("num_scan_inputs")
    directions = edit.take("directions", [0] * count)
    carries, scanned = operands[: len(operands) - count], operands[len(operands) - count :]
    samples = [_sample(value, edit.namer) for value in (*carries, *scanned)]
    attributes = {"body": body, "num_scan_inputs": count, "scan_input_directions": directions}
    inner = _node(samples, attributes, len(edit.node.outputs), edit)
    title = edit.node.name or "Scan"
    graph = ir.Graph(samples, inner.outputs, nodes=[inner], name=edit.namer.fresh(f"{title}/batch"))
    edit.become("Scan", *operands, body=graph, num_scan_inputs=len(operands))


def _sample(value: ir.Value, namer: Namer) -> ir.Value:
    """The input of a Scan body for one element of ``value`` along its first axis."""
    shape = None if value.shape is None else ir.Shape(list(value.shape.dims[1:]))
    return ir.Value(name=namer.fresh(f"{value.name}/sample"), type=value.type, shape=shape)


def _node(samples: Sequence[ir.Value], attributes: dict[str, Any], outputs: int, edit: Edit) -> ir.Node:
    hint = f"{edit.node.name or 'Scan'}/sequence"
    converted = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    node = ir.Node("", "Scan", samples, converted, num_outputs=outputs, name=edit.namer.fresh(hint), version=BASE)
    for output in node.outputs:
        output.name = edit.namer.fresh(f"{hint}.out")
    return node
