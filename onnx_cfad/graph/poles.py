"""Where a derivative may be infinite or NaN at a value that the model admits: poles that nothing keeps it from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnx_cfad.graph.norms import is_norm
from onnx_cfad.graph.signs import Sign, sign_of
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import nodes_of

_AT_ONE = {"Asin": "-1 and 1", "Acos": "-1 and 1", "Atanh": "-1 and 1", "Acosh": "1"}
IsActive = Callable[[ir.Value | None], bool]


def poles(graph: ir.Graph, is_active: IsActive) -> Iterator[tuple[ir.Node, str]]:
    """The nodes of ``graph`` and its subgraphs at whose poles a derivative may arrive, each with the reason.

    A norm (``is_norm``, ReduceL2, LpNormalization) is none: its derivative at zero is 0.

    Args:
        graph: A main graph.
        is_active: Whether a derivative passes through a value.
    """
    for node in nodes_of(graph):
        if node.domain in ("", "ai.onnx") and any(map(is_active, node.outputs)):
            reason = _why(node, is_active)
            if reason:
                yield node, reason


def _why(node: ir.Node, is_active: IsActive) -> str:
    first = node.inputs[0] if node.inputs else None
    name = "" if first is None else first.name
    if node.op_type == "Sqrt":
        return f"infinite where '{name}' is 0" if sign_of(first) < Sign.POSITIVE and not is_norm(node) else ""
    if node.op_type in ("Log", "Reciprocal"):
        return f"infinite where '{name}' is 0" if sign_of(first) < Sign.POSITIVE else ""
    if node.op_type == "ReduceLogSum":
        return f"infinite where a sum of '{name}' is 0" if sign_of(first) < Sign.POSITIVE else ""
    if node.op_type == "Div":
        by = node.inputs[1]
        at_zero = is_active(by) and sign_of(by) < Sign.POSITIVE
        return f"infinite where '{by.name if by else ''}' is 0" if at_zero else ""
    if node.op_type in _AT_ONE:
        return f"infinite where '{name}' is {_AT_ONE[node.op_type]}"
    return _why_pow(node, is_active) if node.op_type == "Pow" else ""


def _why_pow(node: ir.Node, is_active: IsActive) -> str:
    base, exponent = node.inputs[:2]
    if base is None or exponent is None or sign_of(base) == Sign.POSITIVE:
        return ""
    if is_active(exponent) and sign_of(base) < Sign.NONNEGATIVE:
        return f"NaN by '{exponent.name}' where '{base.name}' is negative"
    if is_active(exponent) and sign_of(exponent) < Sign.NONNEGATIVE:
        return f"infinite or NaN where '{base.name}' is 0 and '{exponent.name}' is negative"
    if not is_active(base) or is_norm(node):
        return ""
    known = constant_of(exponent)
    if known is None:
        return f"infinite where '{base.name}' is 0 and '{exponent.name}' is below 1"
    return f"infinite where '{base.name}' is 0" if ((known < 1) & (known != 0)).any() else ""
