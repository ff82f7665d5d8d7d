"""Recorded nodes: which of them are needed, which are the same, and how their attributes are made."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx.defs
import onnx_ir as ir

from onnx_cfad.graph.regions import captured_by
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import nodes_of, subgraphs_of


def live(nodes: Sequence[ir.Node], results: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that ``results`` depend on; the others are detached from what they read."""
    needed: set[ir.Value | None] = set(results)
    kept: list[ir.Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.inputs, captured_by(node))
            continue
        for part in (node, *(inner for graph in subgraphs_of(node) for inner in nodes_of(graph))):
            for index in range(len(part.inputs)):
                part.replace_input_with(index, None)
    return kept[::-1]


def attribute(name: str, value: Any) -> ir.Attr:
    """An attribute of the kind that ``value`` has."""
    if type(value) is int:  # the common kinds first: to find out the kind of anything takes long
        return _number(name, value)
    if type(value) is str:
        return ir.AttrString(name, value)
    if isinstance(value, (list, tuple)) and value and all(type(x) is int for x in value):
        return _numbers(name, tuple(value))
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, ir.TypeAndShape):
        return ir.AttrTypeProto(name, value)
    return ir.convenience.convert_attribute(name, value)


@functools.lru_cache(
    maxsize=1024
)  # an attribute is replaced, never changed, and nodes share it, as in onnx_ir's clones
def _number(name: str, value: int) -> ir.Attr:
    return ir.AttrInt64(name, value)


@functools.lru_cache(maxsize=1024)
def _numbers(name: str, values: tuple[int, ...]) -> ir.Attr:
    return ir.AttrInt64s(name, values)


def key_of(domain: str, op_type: str, values: list[ir.Value | None], attributes: dict[str, Any], outputs: int) -> Any:
    """What makes two recorded nodes the same; None for nodes with a subgraph or a tensor, which are never shared."""
    given = ""
    if attributes:
        if any(not isinstance(v, (int, float, str, bytes, list, tuple)) for v in attributes.values()):
            return None
        given = repr(sorted(attributes.items()))
    return (domain, op_type, tuple(map(id, values)), given, outputs)


# What cotangents of bfloat16 meet behind operators that move and cast: ONNX Runtime 1.32 has kernels for those, but not
# for these. Products and convolutions stay in bfloat16: only a model for another runtime leads to them.
_ELEMENTWISE = frozenset(
    ("Abs", "Add", "Div", "Equal", "Expand", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul")
    + ("Neg", "Sub", "Sum", "Tile", "Where")
)


_INVERSE = {"Squeeze": "Unsqueeze", "Unsqueeze": "Squeeze", "Transpose": "Transpose"}


def undone_by(op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any]) -> ir.Value | None:
    """What was laid out otherwise before an operator that lays it out as it was; None for any other."""
    node = values[0].producer() if op_type in _INVERSE and values[0] is not None else None
    if node is None or node.op_type != _INVERSE[op_type] or node.domain not in ("", "ai.onnx"):
        return None
    if op_type == "Transpose":
        made, given = node.attributes.get("perm"), attributes.get("perm") or ()
        perm = range(len(given))[::-1] if made is None else made.as_ints()
        return node.inputs[0] if given and [perm[axis] for axis in given] == sorted(given) else None
    axes = [constant_of(x[1]) if len(x) == 2 else None for x in (values, node.inputs)]
    one, other = (None if x is None else x.tolist() for x in axes)
    return node.inputs[0] if one is not None and one == other else None


@functools.cache
def without_bfloat16(opset: int) -> frozenset[str]:
    """The operators of the default domain to run in float32: ``opset`` or ONNX Runtime does not have them otherwise."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    return _ELEMENTWISE | {name for name in names if _lacks_bfloat16(name, opset)}


def _lacks_bfloat16(op_type: str, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    types = {name for parameter in schema.inputs for name in parameter.types}
    return "tensor(float16)" in types and "tensor(bfloat16)" not in types
