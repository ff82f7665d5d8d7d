"""Inlining of model-local functions: their bodies take the place of every call, in every scope."""

from __future__ import annotations

import graphlib

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.scopes import MAX_DEPTH, subgraphs_of

_REMEDY = "Write what repeats as a Loop."
MAX_NODES = 1_000_000
"""Nodes of a model after inlining. A small file can ask for more: functions that call each other twice double."""


def inline_functions(model: ir.Model) -> None:
    """Replaces every call of a model-local function by its body, and removes the functions.

    Nodes keep the opset version that their function was written for in ``node.version``, so each can be converted
    by itself afterwards.

    Raises:
        ModelError: Functions call each other in a cycle, the inlined model would be too large, or a call does not fit.
    """
    if not model.functions:
        return
    _check_size(model, _call_order(model))
    _adopt_opsets(model)
    for function in model.functions.values():
        _give_outputs_a_producer(function)
    try:
        InlinePass()(model)
    except (ir.passes.PassError, ValueError) as error:
        raise ModelError("model-local functions", f"cannot be inlined: {root_message(error)}") from error
    model.functions.clear()


def _title(identifier: ir.OperatorIdentifier) -> str:
    domain, name, overload = identifier
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


def _call_order(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """The functions, each after those it calls."""
    calls = {
        identifier: [n.op_identifier() for n in nodes_of(function) if n.op_identifier() in model.functions]
        for identifier, function in model.functions.items()
    }
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(_title(identifier) for identifier in reversed(error.args[1]))
        raise ModelError(
            "model-local functions", f"they call each other in a cycle: {cycle}", "ONNX has no recursion; use a Loop."
        ) from error


def _check_size(model: ir.Model, order: list[ir.OperatorIdentifier]) -> None:
    """Refuses a model whose inlined form has too many nodes or is nested too deep."""
    sizes: dict[ir.OperatorIdentifier, tuple[int, int]] = {}
    for identifier in order:
        sizes[identifier] = _inlined_size(model.functions[identifier].graph, sizes)
    count, depth = _inlined_size(model.graph, sizes)
    if count > MAX_NODES:
        raise ModelError(
            "model-local functions", f"the model would have {count:,} nodes inlined, over {MAX_NODES:,}", _REMEDY
        )
    if depth > MAX_DEPTH:
        raise ModelError(
            "model-local functions", f"subgraphs would be nested {depth} deep inlined, over {MAX_DEPTH}", _REMEDY
        )


def _inlined_size(graph: ir.Graph, sizes: dict[ir.OperatorIdentifier, tuple[int, int]]) -> tuple[int, int]:
    """How many nodes a graph has, and how deep its subgraphs are nested, once its calls are replaced."""
    count, depth = 0, 0
    for node in graph:
        inner_count, inner_depth = sizes.get(node.op_identifier(), (1, 0))
        count, depth = count + inner_count, max(depth, inner_depth)
        for _, subgraph in subgraphs_of(node):
            inner_count, inner_depth = _inlined_size(subgraph, sizes)
            count, depth = count + inner_count, max(depth, inner_depth + 1)
    return count, depth


def _adopt_opsets(model: ir.Model) -> None:
    """Takes the functions' opset imports into the model; versions that differ are kept in the nodes."""
    for identifier, function in model.functions.items():
        for domain, version in function.opset_imports.items():
            known = model.opset_imports.setdefault(domain, version)
            if known != version and domain != "":
                raise ModelError(
                    f"function {_title(identifier)}",
                    f"imports {domain} {version}, but the model imports {domain} {known}",
                )
            function.opset_imports[domain] = known


def _give_outputs_a_producer(function: ir.Function) -> None:
    """Puts an Identity before an output that is an input, or that is returned twice.

    The inliner gives the caller's name to the value that the body returns; without a value of its own, an input of
    the caller would be renamed.
    """
    seen: set[ir.Value] = set()
    for index, output in enumerate(function.outputs):
        if output in seen or output.producer() is None:
            node = ir.Node("", "Identity", [output])
            node.outputs[0].name = f"{output.name}_{index}"
            node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
            function.append(node)
            function.outputs[index] = node.outputs[0]
        seen.add(output)


def root_message(error: BaseException) -> str:
    """The first line of the error that started a chain of errors."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return str(error).splitlines()[0]
