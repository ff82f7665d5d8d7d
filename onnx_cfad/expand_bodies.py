"""Operators whose specified body has control flow are written out, so that their loops are planned as others are."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx.defs
import onnx_ir as ir

from onnx_cfad.dimension_names import plain_dimension_names
from onnx_cfad.errors import ModelError
from onnx_cfad.functions import inline_functions
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.specification import made_outputs, specified_body
from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.opsets import convert_opset, stamp_versions

EXPANDED = frozenset((("", "LinearAttention"), ("ai.onnx.preview", "FlexAttention")))
"""Domain and name of the operators."""

_BODY_OPSET = 26  # what bodies that import no opset are written for: the oldest that onnx 1.23 expands them to
_DOMAIN = "onnx_cfad.body"


def expand_bodies(model: ir.Model, operators: Collection[tuple[str, str]] = EXPANDED) -> bool:
    """Replaces operators of ``model``, which has no functions, by their bodies; whether there was one.

    Args:
        model: The model, changed in place.
        operators: Domain and name of those to replace.

    Raises:
        ModelError: The type of an input, which the body depends on, is not known.
    """
    nodes = nodes_of(model.graph)
    if not any((node.domain, node.op_type) in operators for node in nodes):
        return False
    typed = model.clone()  # inference overwrites what the author declared
    plain_dimension_names(typed)
    infer_types(typed)
    for node, twin in zip(nodes, nodes_of(typed.graph), strict=True):
        if (node.domain, node.op_type) in operators:
            with Blamed(node, "its body cannot be written out", model):
                _call_body(model, node, twin)
    stamp_versions(model)
    inline_functions(model)
    model.opset_imports.pop(_DOMAIN, None)
    convert_opset(model)
    return True


def _call_body(model: ir.Model, node: ir.Node, twin: ir.Node) -> None:
    """Puts a call of a function in place of ``node``, whose ``twin`` has typed inputs."""
    unknown = next((v for v in twin.inputs if v is not None and v.type is None), None)
    if unknown is not None:
        raise ModelError(f"{node.op_type} '{node.name}'", f"the type of its input '{unknown.name}' is not known")
    proto = specified_body(twin, twin.inputs, model.opset_imports[node.domain])
    kept = made_outputs(proto)
    names = [proto.output[index] for index in kept]
    del proto.output[:]
    proto.output.extend(names)
    proto.domain, proto.name = _DOMAIN, f"{node.op_type}_{len(model.functions)}"
    graphs = [name for name, attribute in node.attributes.items() if attribute.type == ir.AttributeType.GRAPH]
    declared = [name for name in proto.attribute if name not in graphs]  # what is in them is in the body already
    del proto.attribute[:]
    proto.attribute.extend(declared)
    function = ir.serde.deserialize_function(proto)
    function.opset_imports.setdefault("", max(_BODY_OPSET, model.opset_imports.get("", _BODY_OPSET)))
    given = [attribute for name, attribute in node.attributes.items() if name in function.attributes]
    attributes = [*given, *_defaults(node, declared, model.opset_imports[node.domain])]
    call = ir.Node(_DOMAIN, function.name, node.inputs, attributes, num_outputs=len(kept), name=node.name)
    model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
    graph = node.graph
    assert graph is not None
    old = [node.outputs[index] for index in kept if index < len(node.outputs)]
    for new, output in zip(call.outputs, old, strict=False):
        new.type, new.shape = output.type, output.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [call], old, call.outputs[: len(old)])


def _defaults(node: ir.Node, declared: Iterable[str], opset: int) -> list[ir.Attr]:
    """What the specification gives the attributes that a body reads and ``node`` does not have."""
    known = onnx.defs.get_schema(node.op_type, opset, node.domain).attributes
    absent = (known[name].default_value for name in declared if name not in node.attributes)
    return [ir.serde.deserialize_attribute(value) for value in absent if value.type]
