"""The function body that the specification of an operator gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx.defs
import onnx_ir as ir

from onnx_cfad.errors import UnsupportedOp


def specified_body(node: ir.Node, inputs: Sequence[ir.Value | None], opset: int) -> onnx.FunctionProto:
    """The body of ``node``, with only those outputs that it makes.

    Args:
        node: The operator's node.
        inputs: Its inputs, typed; None where one is omitted.
        opset: The version of the node's domain.

    Raises:
        UnsupportedOp: The specification has no body for that version, or for sizes that are not known.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)  # its stub lacks the function bodies
    if schema.has_function:
        body: onnx.FunctionProto = schema.function_body
    elif schema.has_context_dependent_function:
        types = [_type_proto(value).SerializeToString() for value in inputs]
        complete = ir.serde.serialize_node(node).SerializeToString()
        body = onnx.FunctionProto.FromString(schema.get_context_dependent_function(complete, types))
        if not body.node:
            what = f"{node.op_type} has a function body for known sizes only, and those of its inputs are not known"
            raise UnsupportedOp("", what, "Declare the shapes of its inputs.")
    else:
        raise UnsupportedOp("", f"{node.op_type} has neither a rule nor a function body", "Register a rule.")
    return body


def made_outputs(body: onnx.FunctionProto) -> list[int]:
    """The outputs that a body makes, by number: it leaves out what nobody asked for, but still lists it."""
    made = {name for inner in body.node for name in inner.output} | set(body.input)
    return [index for index, name in enumerate(body.output) if name in made]


def _type_proto(value: ir.Value | None) -> onnx.TypeProto:
    return onnx.TypeProto() if value is None else ir.serde.serialize_value(value).type
