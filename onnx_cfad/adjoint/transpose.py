"""A JVP from a VJP rule: J t is what transposing the linear map u -> transpose(J) u gives for t.

The rule is called with a symbolic cotangent u, and what it records is swept backwards from the tangents of the inputs
to u. Nothing that the result depends on reads the elements of u, so u vanishes; where the shape of u is read, that of
the primal output is the same.

References:
    Radul, Paszke, Frostig, Johnson, Maclaurin, "You Only Linearize Once", 2022 (the other direction: VJP from JVP).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.cotangents import Cotangents, sum_to
from onnx_cfad.adjoint.expr import Builder, Expr, Update
from onnx_cfad.adjoint.records import Records
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.sweep import Sweep, passes_derivative
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.graph.activity import carries_derivative, find_activity, reached
from onnx_cfad.graph.regions import control_flow, is_branch, is_loop
from onnx_cfad.graph.straight_through import carries_estimate
from onnx_cfad.graph.types import Types, infer_types
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.rewriters.prune import PruneDeadValuesPass
from onnx_cfad.rules.registry import Rule, attributes_of

_SHAPE_ONLY = frozenset(("Shape", "Size", "SequenceLength", "OptionalHasElement"))


def transposed(rule: Rule, node: ir.Node, tangents: Sequence[Expr | None], builder: Builder) -> tuple[Expr | None, ...]:
    """The tangents of the outputs of ``node`` from those of its inputs, by its VJP ``rule``; None for zero.

    Args:
        rule: The VJP rule.
        node: The primal node.
        tangents: Of its inputs; None for zero.
        builder: Takes what the result needs.
    """
    scratch = builder.scratch()
    kind = next((t.type for t in tangents if t is not None), None)
    outputs = tuple(node.outputs)  # a rule may make the node hand out more
    cts = [_cotangent(y, kind if carries_estimate(y) else y.type or kind, scratch) for y in outputs]
    seeds = _pulled_back(rule, node, cts, tangents, scratch)
    results = _swept(scratch, [ct for ct in cts if ct is not None], seeds)
    found = [None if ct is None else results.get(ct.value) for ct in cts]
    for ct, output in zip(cts, outputs, strict=True):
        if ct is not None:
            like = builder.expr(output)
            like = like.cast(ct.dtype) if carries_estimate(output) else like
            ir.convenience.replace_all_uses_with(ct.value, like.value)  # only its shape is read
    builder.keep(scratch, [result for result in found if result is not None])
    return tuple(None if result is None else builder.expr(result.value) for result in found)


def _cotangent(output: ir.Value, type_: ir.TypeProtocol | None, scratch: Builder) -> Expr | None:
    """The symbolic cotangent of an output; None for one of integers, or one that the model leaves out."""
    if not output.name or not carries_derivative(output):
        return None
    return scratch.input(f"u.{output.name}", type_, output.shape)


def _pulled_back(
    rule: Rule, node: ir.Node, cts: Sequence[Expr | None], tangents: Sequence[Expr | None], scratch: Builder
) -> list[tuple[Expr, Expr]]:
    """The cotangents of the inputs that have a tangent, with the tangents."""
    single = len(node.outputs) == 1
    ys = tuple(scratch.expr(output) for output in node.outputs)
    xs = [scratch.optional(value) for value in node.inputs]
    attributes = attributes_of(node, rule.attributes, scratch.opset)
    results = rule.function(cts[0] if single else tuple(cts), ys[0] if single else ys, *xs, **attributes)
    found: list[tuple[Expr, Expr]] = []
    results = results if isinstance(results, (tuple, list)) else (results,)
    for x, t, given in zip(xs, tangents, results, strict=False):
        if x is None or t is None:
            continue
        result: Any = given() if callable(given) else given
        result = result.apply(None) if isinstance(result, Update) else result
        if result is not None:
            result = sum_to(result, node.outputs[0], x) if rule.broadcasts else result
            found.append((result, t))
    return found


def _swept(scratch: Builder, cts: Sequence[Expr], seeds: Sequence[tuple[Expr, Expr]]) -> dict[ir.Value, Expr]:
    """The transpose of what ``scratch`` holds: from ``seeds`` for its results to the cotangents of ``cts``."""
    graph = ir.Graph([], [], nodes=scratch.nodes, opset_imports={"": scratch.opset}, name="transposed")
    model = ir.Model(graph, ir_version=10)
    sites = control_flow(model)
    types = _inferred(model)
    activity = find_activity(graph, [ct.value for ct in cts], [result.value for result, _ in seeds], passes_derivative)
    activity = dataclasses.replace(activity, cuttable=set())
    adjoints: dict[ir.Graph, Adjoint] = {}
    for node in nodes_of(graph):
        if is_loop(node) or is_branch(node):
            adjoints.update(dict.fromkeys(subgraphs_of(node), Taped() if is_loop(node) else Routed()))
    after = scratch.scratch()
    cotangents = Cotangents(after)
    for result, tangent in seeds:
        cotangents.add(result.value, after.expr(tangent.value))
    Sweep(activity, types, sites, Prepared(adjoints), Records()).run(graph, cotangents, in_loop=False)
    results = {ct.value: cotangents.take(ct.value) for ct in cts}
    found = {value: result for value, result in results.items() if result is not None}
    graph.extend(after.nodes)
    if sites.sites():
        graph.outputs.extend(dict.fromkeys(r.value for r in found.values() if r.value.graph is graph))
        PruneDeadValuesPass()(model)  # a loop that hands out residuals of u need not compute u's part
        graph.outputs.clear()
    still = reached(graph, [ct.value for ct in cts], _reads_elements)
    assert not any(result.value in still for result in found.values()), "a VJP rule is not linear in its cotangent"
    nodes = list(graph)
    graph.remove(nodes)
    scratch.nodes = nodes
    return found


def _inferred(model: ir.Model) -> Types:
    """Infers shapes where the rule left them open; what it knows stays."""
    known = {output: output.shape for node in nodes_of(model.graph) for output in node.outputs}
    types = infer_types(model, _captured(model.graph))
    for value, shape in known.items():
        if shape is not None and (
            value.shape is None or value.shape.rank() != shape.rank() or not shape.has_unknown_dim()
        ):
            value.shape = shape
    return types


def _captured(graph: ir.Graph) -> list[ir.Value]:
    """What the nodes of ``graph`` read from outside."""
    read = [v for node in nodes_of(graph) for v in node.inputs if v is not None]
    own = {output for node in nodes_of(graph) for output in node.outputs}
    return [v for v in dict.fromkeys(read) if v not in own]


def _reads_elements(node: ir.Node, values: set[ir.Value]) -> bool:
    """Whether a node reads more than shape and type of those of its inputs that are among ``values``."""
    return node.op_type not in _SHAPE_ONLY and not (node.op_type == "CastLike" and node.inputs[0] not in values)
