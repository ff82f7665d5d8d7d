"""What a node is made of against its operator's specification: inputs, outputs, attributes and their types."""

from __future__ import annotations

import dataclasses
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
        functions = bool(model.functions)
        for path, node in _nodes(owner.graph, where):
            if not node.op_type:
                raise ModelError(f"{path}/node {node.name!r}", "it has no operator", _REMEDY)
            if functions and node.op_identifier() in model.functions:
                continue
            version = _version(owner.opset_imports, node.domain)
            signature = _signature(node.op_type, node.domain, version)
            if signature is not None:
                wrong = _wrong_with(node, signature)
                if wrong is not None:
                    raise ModelError(_place(path, node), wrong, _REMEDY)
            elif version is not None and (first := _first_version(node.op_type, node.domain)) is not None:
                what = f"opset {version}, which the model imports, does not have this operator; opset {first} has"
                raise ModelError(_place(path, node), what, "Export the model again with a newer opset.")


def _place(path: str, node: ir.Node) -> str:
    return f"{path}/{node.op_type}" + (f" {node.name!r}" if node.name else "")


def _nodes(graph: ir.Graph, path: str) -> Iterator[tuple[str, ir.Node]]:
    for node in graph:
        yield path, node
        for name, inner in subgraphs_of(node):
            label = (node.name or node.op_type).strip("/")
            yield from _nodes(inner, f"{path}/{label}/{REGION_NAMES.get(name, name)}")


def _version(opsets: Mapping[str, int], domain: str) -> int | None:
    names = _DEFAULT if domain in _DEFAULT else (domain,)
    return next((opsets[name] for name in names if name in opsets), None)


@dataclasses.dataclass(frozen=True)
class _Signature:
    """What a specification asks for, read once: each look into an ``OpSchema`` copies it.

    Attributes:
        since: The opset that brought it.
        inputs: Bounds of the number of inputs.
        outputs: Bounds of the number of outputs.
        needed: Of each formal input that must be there: its number, its name, and whether all that follow are of it.
        attributes: The types of the attributes.
        required: The attributes that must be there.
        one_attribute: Exactly one attribute must be there.
    """

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[tuple[int, str, bool], ...]
    attributes: Mapping[str, ir.AttributeType]
    required: tuple[str, ...]
    one_attribute: bool


@functools.cache
def _signature(op_type: str, domain: str, version: int | None) -> _Signature | None:
    if version is None or not 0 < version < 2**31:
        return None
    try:
        schema = onnx.defs.get_schema(op_type, version, "" if domain in _DEFAULT else domain)
    except onnx.defs.SchemaError:
        return None
    formals, attributes = list(schema.inputs), dict(schema.attributes)
    return _Signature(
        schema.since_version,
        (sum(map(_least, formals)), schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(
            (index, formal.name, formal.option == _FORMAL.Variadic)
            for index, formal in enumerate(formals)
            if formal.option != _FORMAL.Optional
        ),
        {name: _TYPES[known.type] for name, known in attributes.items()},
        tuple(name for name, known in attributes.items() if known.required),
        schema.name == "Constant" and schema.domain == "",
    )


@functools.cache
def _first_version(op_type: str, domain: str) -> int | None:
    """The opset that brought an operator of the ONNX standard; None for an operator that is not in it."""
    known = (s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == "")
    return min(known, default=None) if domain in _DEFAULT else None


def _wrong_with(node: ir.Node, signature: _Signature) -> str | None:
    """What does not fit, in words; None where all does."""
    return (
        _wrong_count(len(node.inputs), signature.inputs, "inputs")
        or _wrong_count(len(node.outputs), signature.outputs, "outputs")
        or _absent(node, signature)
        or _wrong_attribute(node, signature)
    )


def _wrong_count(found: int, bounds: tuple[int, int], kind: str) -> str | None:
    least, most = bounds
    if least <= found <= most:
        return None
    wanted = str(least) if least == most else f"{least} to {most}" if most < _UNLIMITED else f"{least} or more"
    return f"it has {found} {kind}, its operator has {wanted}"


def _absent(node: ir.Node, signature: _Signature) -> str | None:
    """An input that is left out though it is not optional."""
    inputs = node.inputs
    for index, name, variadic in signature.needed:
        for k in range(index, len(inputs)) if variadic else (index,):
            if k >= len(inputs) or inputs[k] is None:
                return f"its input {k} ({name}) is absent and must be there"
    return None


def _least(formal: onnx.defs.OpSchema.FormalParameter) -> int:
    """How many inputs a formal one stands for at least."""
    if formal.option == _FORMAL.Variadic:
        return formal.min_arity
    return 1 if formal.option == _FORMAL.Single else 0


def _wrong_attribute(node: ir.Node, signature: _Signature) -> str | None:
    given = node.attributes.data
    for name, attribute in given.items():
        wanted = signature.attributes.get(name)
        if wanted is None:
            return f"its operator, as of opset {signature.since}, has no attribute {name!r}"
        if attribute.type != wanted and not attribute.is_ref():
            return f"attribute {name!r} is of type {attribute.type.name}, expected {wanted.name}"
        if attribute.type == ir.AttributeType.STRING and isinstance(attribute.value, bytes):
            return f"attribute {name!r} is not valid UTF-8: {attribute.value[:40]!r}"
    for name in signature.required:
        if name not in given:
            return f"it has no {name}, an attribute that must be there"
    if signature.one_attribute and len(given) != 1:
        return f"a Constant has exactly one attribute, this one has {len(given)}"
    return None
