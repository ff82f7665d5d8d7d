"""The inferred types of a node's operands against the types that its operator's specification allows.

ONNX Runtime refuses a model in which they differ, wherever the node is; a gradient of it would be as unusable.
"""

from __future__ import annotations

import functools

import onnx.defs
import onnx_ir as ir

_TENSORS = {t: f"tensor({t.name.lower()})" for t in ir.DataType if t != ir.DataType.UNDEFINED}
"""Tensors as specifications write them; a sequence may be of what nothing is known of."""

_FORMAL = onnx.defs.OpSchema.FormalParameterOption


def misfit(node: ir.Node, opset: int) -> str | None:
    """What is wrong with the types of a node's inputs, in words; None where nothing is, or nothing is known.

    Args:
        node: A node of the default domain.
        opset: The opset that its model imports.
    """
    formals = _formals(node.op_type, opset)
    bound: dict[str, tuple[int, str]] = {}
    for index, value in enumerate(node.inputs if formals else ()):
        found = None if value is None else _text(value.type)
        if found is None:
            continue
        allowed, variable = formals[min(index, len(formals) - 1)]
        if found not in allowed:
            return f"its input {index} is a {found}, expected {_listed(allowed)}"
        if variable is None:
            continue
        first, type_ = bound.setdefault(variable, (index, found))
        if type_ != found:
            return f"its inputs {first} and {index} have to be of one type, found {type_} and {found}"
    return None


def take_types_of_inputs(node: ir.Node, opset: int) -> None:
    """Gives outputs of unknown type, of a node of the default domain, the type of the input that shares its variable.

    That holds whatever the ranks are, which may not fit in a branch that never runs.
    """
    if all(output.type is not None for output in node.outputs):
        return
    schema = _schema(node.op_type, opset)
    if schema is None or not schema.outputs:
        return
    for index, output in enumerate(node.outputs):
        variable = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
        if output.type is None:
            pairs = zip(schema.inputs, node.inputs, strict=False)
            output.type = next((v.type for f, v in pairs if v is not None and f.type_str == variable), None)


def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _formals(op_type: str, opset: int) -> tuple[tuple[frozenset[str], str | None], ...]:
    """For each formal input the allowed types, and the type variable that it shares with others."""
    schema = _schema(op_type, opset)
    if schema is None:
        return ()
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    return tuple(
        (
            frozenset(formal.types),
            formal.type_str
            if formal.type_str in variables and (formal.option != _FORMAL.Variadic or formal.is_homogeneous)
            else None,
        )
        for formal in schema.inputs
    )


def _text(type_: ir.TypeProtocol | None) -> str | None:
    """A type as specifications write it, such as ``seq(tensor(float))``; None where it is not known to the end."""
    if type(type_) is ir.TensorType:
        return _TENSORS.get(type_.dtype)
    if isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        inner = _text(type_.elem_type)
        kind = "seq" if isinstance(type_, ir.SequenceType) else "optional"
        return None if inner is None else f"{kind}({inner})"
    return None


def _listed(allowed: frozenset[str]) -> str:
    names = sorted(allowed)
    return ", ".join(names[:6]) + (f" or {len(names) - 6} more" if len(names) > 6 else "")
