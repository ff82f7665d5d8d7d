"""What a node is made of against its operator's specification: inputs, outputs, attributes and their types."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import onnx.defs
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.scopes import REGION_NAMES, subgraphs_of

_DEFAULT = ("", "ai.onnx")
_FORMAL = onnx.defs.OpSchema.FormalParameterOption
_TYPES = {getattr(onnx.defs.OpSchema.AttrType, t.name, None): t for t in ir.AttributeType}
_UNLIMITED = 2**31 - 1
_REMEDY = "Export the model again, or correct the node."


def check_signatures(model: ir.Model) -> None:
    """Refuses a node that lacks, or has too much of, what the specification of its operator asks for.

    The version of the specification is the one that the model, or the function around the node, imports. Operators that
    the onnx package does not know, and those that are functions of the model, are left alone.

    Raises:
        ModelError: The number of inputs or outputs is wrong, an input is absent that must be there, or an attribute is
            unknown, missing or of the wrong type.
    """
    owners: list[tuple[str, ir.Model | ir.Function]] = [("main", model)]
    owners += [(f"function {f.domain}::{f.name}", f) for f in model.functions.values()]
    for where, owner in owners:
        for path, node in _nodes(owner.graph, where):
            place = f"{path}/{node.op_type}" + (f" {node.name!r}" if node.name else "")
            if not node.op_type:
                raise ModelError(f"{path}/node {node.name!r}", "it has no operator", _REMEDY)
            if node.op_identifier() in model.functions:
                continue
            version = _version(owner.opset_imports, node.domain)
            schema = _schema(node.op_type, node.domain, version)
            if schema is not None:
                _check_node(node, schema, place)
            elif version is not None and (first := _first_version(node.op_type, node.domain)) is not None:
                what = f"opset {version}, which the model imports, does not have this operator; opset {first} has"
                raise ModelError(place, what, "Export the model again with a newer opset.")


def _nodes(graph: ir.Graph, path: str) -> Iterator[tuple[str, ir.Node]]:
    for node in graph:
        yield path, node
        for name, inner in subgraphs_of(node):
            label = (node.name or node.op_type).strip("/")
            yield from _nodes(inner, f"{path}/{label}/{REGION_NAMES.get(name, name)}")


def _version(opsets: Mapping[str, int], domain: str) -> int | None:
    names = _DEFAULT if domain in _DEFAULT else (domain,)
    return next((opsets[name] for name in names if name in opsets), None)


@functools.cache
def _schema(op_type: str, domain: str, version: int | None) -> onnx.defs.OpSchema | None:
    if version is None or not 0 < version < 2**31:
        return None
    try:
        return onnx.defs.get_schema(op_type, version, "" if domain in _DEFAULT else domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _first_version(op_type: str, domain: str) -> int | None:
    """The opset that brought an operator of the ONNX standard; None for an operator that is not in it."""
    known = (s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == "")
    return min(known, default=None) if domain in _DEFAULT else None


def _check_node(node: ir.Node, schema: onnx.defs.OpSchema, place: str) -> None:
    least = sum(_least(formal) for formal in schema.inputs)
    _check_count(len(node.inputs), least, schema.max_input, place, "inputs")
    _check_count(len(node.outputs), schema.min_output, schema.max_output, place, "outputs")
    _check_presence(node, schema, place)
    _check_attributes(node, schema, place)


def _check_count(found: int, least: int, most: int, place: str, kind: str) -> None:
    if not least <= found <= most:
        wanted = str(least) if least == most else f"{least} to {most}" if most < _UNLIMITED else f"{least} or more"
        raise ModelError(place, f"it has {found} {kind}, its operator has {wanted}", _REMEDY)


def _check_presence(node: ir.Node, schema: onnx.defs.OpSchema, place: str) -> None:
    """No input is left out but those that are optional."""
    for index, formal in enumerate(schema.inputs):
        end = len(node.inputs) if formal.option == _FORMAL.Variadic else index + 1
        for k in range(index, end) if formal.option != _FORMAL.Optional else ():
            if k >= len(node.inputs) or node.inputs[k] is None:
                raise ModelError(place, f"its input {k} ({formal.name}) is absent and must be there", _REMEDY)


def _least(formal: onnx.defs.OpSchema.FormalParameter) -> int:
    """How many inputs a formal one stands for at least."""
    if formal.option == _FORMAL.Variadic:
        return formal.min_arity
    return 1 if formal.option == _FORMAL.Single else 0


def _check_attributes(node: ir.Node, schema: onnx.defs.OpSchema, place: str) -> None:
    for name, attribute in node.attributes.items():
        known = schema.attributes.get(name)
        if known is None:
            what = f"its operator, as of opset {schema.since_version}, has no attribute {name!r}"
            raise ModelError(place, what, _REMEDY)
        wanted = _TYPES[known.type]
        if attribute.type != wanted and not attribute.is_ref():
            what = f"attribute {name!r} is of type {attribute.type.name}, expected {wanted.name}"
            raise ModelError(place, what, _REMEDY)
        if attribute.type == ir.AttributeType.STRING and isinstance(attribute.value, bytes):
            raise ModelError(place, f"attribute {name!r} is not valid UTF-8: {attribute.value[:40]!r}", _REMEDY)
    for name, known in schema.attributes.items():
        if known.required and name not in node.attributes:
            raise ModelError(place, f"it has no {name}, an attribute that must be there", _REMEDY)
    if schema.name == "Constant" and schema.domain == "" and len(node.attributes) != 1:
        what = f"a Constant has exactly one attribute, this one has {len(node.attributes)}"
        raise ModelError(place, what, _REMEDY)
