"""Integers of a loop body that are the iteration number and a constant, however an exporter wrote them."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite

_COUNTING = frozenset((ir.DataType.INT32, ir.DataType.INT64))
_SAME = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Concat"))


def iterations_ahead(value: ir.Value, site: LoopSite) -> int | None:
    """What ``value``, one integer, is more than the iteration number in every iteration; None where that is not known.

    A carry that starts from a constant and grows by 1 counts too, as in ``while i < n: ...; i += 1``.
    """
    start, distance = _traced(value, site)
    if start is site.index:
        return distance
    carry = next((c for c in site.carries if c.entry is start), None)
    first = _number(carry.initial) if carry is not None else None
    if carry is None or first is None or _traced(carry.exit, site) != (carry.entry, 1):
        return None
    return first + distance


def _traced(value: ir.Value, site: LoopSite) -> tuple[ir.Value | None, int]:
    """The input of the body that ``value`` comes from, and how much was added on the way."""
    distance = 0
    while (node := value.producer()) is not None:
        operands = [v for v in node.inputs if v is not None]
        if node.graph is not site.body or node.domain not in ("", "ai.onnx") or value.dtype not in _COUNTING:
            return None, 0
        if node.op_type in _SAME and not (node.op_type == "Concat" and len(operands) > 1):
            value = operands[0]
            continue
        numbers = [_number(v) for v in operands]
        known = next((n for n in reversed(numbers) if n is not None), None)
        if len(operands) != 2 or known is None:
            return None, 0
        first = numbers[0] is None  # whether the constant is the second operand
        if node.op_type == "Add" or (node.op_type == "Sub" and first):
            distance += known if node.op_type == "Add" else -known
        elif node.op_type != "Mul" or known != 1:
            return None, 0
        value = operands[0] if first else operands[1]
    return (value if value in site.body.inputs and value.dtype in _COUNTING else None), distance


def _number(value: ir.Value) -> int | None:
    """A constant of one integer."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _COUNTING or tensor.size != 1:
        return None
    return int(tensor.numpy().reshape(()))
