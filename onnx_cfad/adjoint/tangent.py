"""Forward mode through one operator: tangents of its inputs to tangents of its outputs.

An elementwise operator has a diagonal Jacobian, which is its own transpose: its VJP rule is applied to the tangents as
they are. A linear operator is applied to them. What is left has a JVP rule of its own, or its VJP rule is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import guarded
from onnx_cfad.adjoint.expr import Builder, Expr
from onnx_cfad.adjoint.transpose import transposed
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.graph.dims import same_dim
from onnx_cfad.graph.straight_through import carries_estimate
from onnx_cfad.rules.registry import Expanded, Linear, Rule, TangentRule, attributes_of, rule_for, tangent_rule_for

_LINEAR = frozenset(("Add", "Sub", "Neg", "Identity", "Cast", "CastLike", "Sum", "Mean", "Expand", "Where"))
_SHAPING = frozenset(("Shape", "Size", "Expand", "ConstantOfShape"))

Tangents = Sequence[Expr | None]


def push_forward(node: ir.Node, tangents: Tangents, builder: Builder, *, guard: bool = False) -> list[Expr | None]:
    """The tangents of the outputs of ``node``; None for zero.

    Args:
        node: An operator without a subgraph, which has a VJP rule or declares that no derivative passes.
        tangents: Of its inputs, in order; None for zero.
        builder: Records what gives them.
        guard: A tangent may be exactly zero where a derivative is NaN or Inf: the result is zero there.
    """
    rule = rule_for(node)
    if not isinstance(rule, Rule) or all(t is None for t in tangents):
        return [None] * len(node.outputs)
    results = _results(rule, node, tangents, builder, guard=guard)
    for output, result in zip(node.outputs, results, strict=False):
        if result is not None and result.value.producer() is not None and result.value.shape is None:
            result.value.shape = output.shape
    return [*results, *[None] * (len(node.outputs) - len(results))]


def _results(rule: Rule, node: ir.Node, tangents: Tangents, builder: Builder, *, guard: bool) -> Sequence[Expr | None]:
    own = tangent_rule_for(node)
    if isinstance(own, Linear):
        return _through_itself(own, rule, node, tangents, builder)
    if isinstance(own, Expanded):
        return _through_function(own, node, tangents, builder)
    if isinstance(own, TangentRule):
        found = _by_rule(own, node, tangents, builder)
        if found is not NotImplemented:
            return found if isinstance(found, (tuple, list)) else (found,)
    if rule.elementwise and own is None:
        return (_through_elements(rule, node, tangents, builder, guard=guard and node.op_type not in _LINEAR),)
    return transposed(rule, node, tangents, builder)


def _by_rule(own: TangentRule, node: ir.Node, tangents: Tangents, builder: Builder) -> Any:
    ys = tuple(builder.expr(output) for output in node.outputs)
    xs = [builder.optional(value) for value in node.inputs]
    attributes = attributes_of(node, own.attributes, builder.opset)
    return own.function(tuple(tangents), ys[0] if len(ys) == 1 else ys, *xs, **attributes)


def _through_itself(
    own: Linear, rule: Rule, node: ir.Node, tangents: Tangents, builder: Builder
) -> Sequence[Expr | None]:
    """The operator applied to the tangents of each group of inputs that it is linear in; the sum of these."""
    groups = (tuple(range(len(tangents))),) if own.groups is None else own.groups
    groups = [tuple(i for i in group if i < len(tangents)) for group in groups]
    added = {i: tangents[i] for i in own.added if i < len(tangents)}
    chosen = [group for group in groups if any(tangents[i] is not None for i in group)]
    if not chosen and any(t is not None for t in added.values()):
        chosen = [groups[0]]
    terms: list[Sequence[Expr | None]] = []
    for group in chosen:
        inputs = [builder.optional(value) for value in node.inputs]
        for i in group:
            x = inputs[i]
            inputs[i] = None if x is None else _or_zeros(tangents[i], x)
        for i in own.added:
            if i < len(inputs):
                inputs[i] = added.pop(i, None)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        attributes |= {name: 0.0 for name in own.offsets if name in attributes}
        kind = next((t.type for t in tangents if t is not None), None)
        types = [kind if carries_estimate(y) else y.type for y in node.outputs]
        types = [type_ for type_ in types if type_ is not None]
        terms.append(
            builder.call(node.op_type, inputs, attributes, domain=node.domain, types=types, outputs=len(types))
        )
    covered = {i for group in groups for i in group} | {*own.added}
    others = [None if i in covered else t for i, t in enumerate(tangents)]
    if any(t is not None for t in others):
        terms.append(transposed(rule, node, others, builder))
    return [_sum(parts) for parts in zip(*terms, strict=True)]


def _or_zeros(tangent: Expr | None, x: Expr) -> Expr:
    return zero_cotangent(x) if tangent is None else tangent


def _sum(parts: Sequence[Expr | None]) -> Expr | None:
    total: Expr | None = None
    for part in parts:
        total = part if total is None else total if part is None else total + part
    return total


def _through_function(own: Expanded, node: ir.Node, tangents: Tangents, builder: Builder) -> Sequence[Expr | None]:
    """The tangents through each node of the operator's function."""
    nodes, outputs = own.expand(node, [builder.optional(value) for value in node.inputs], builder)
    known = {v: t for v, t in zip(node.inputs, tangents, strict=True) if v is not None and t is not None}
    for inner in nodes:
        given = [None if v is None else known.get(v) for v in inner.inputs]
        results = push_forward(inner, given, builder, guard=True)
        known.update({v: t for v, t in zip(inner.outputs, results, strict=True) if t is not None})
    return [known.get(outputs[index]) if index in outputs else None for index in range(len(node.outputs))]


def _through_elements(rule: Rule, node: ir.Node, tangents: Tangents, builder: Builder, *, guard: bool) -> Expr | None:
    """The VJP rule for each input, given the input's tangent; the sum of these."""
    output = node.outputs[0]
    scratch = builder.scratch()
    xs = [scratch.optional(value) for value in node.inputs]
    attributes = attributes_of(node, rule.attributes, scratch.opset)
    terms: list[Expr | None] = []
    for index, tangent in enumerate(tangents):
        if tangent is None:
            continue
        t = scratch.expr(tangent.value)
        found = rule.function(t, scratch.expr(output), *xs, **attributes)
        given = found[index] if isinstance(found, (tuple, list)) else found
        term: Any = given() if callable(given) else given
        if term is not None and guard and term.value is not t.value:
            term = guarded(t, term)
        terms.append(None if term is None else _typed(term, output))
    total = _sum(terms)
    if total is None:
        return None
    kept = builder.keep(scratch, [total])
    total = builder.expr(total.value)
    return total if _has_shape_of(total, node, tangents, kept) else total.expand(builder.expr(output).shape)


def _typed(term: Expr, output: ir.Value) -> Expr:
    """``term`` in the element type of the output; as it is for a quantised number with an estimated derivative."""
    kind = output.dtype
    return term.cast(kind) if kind is not None and kind.is_floating_point() else term


def _has_shape_of(total: Expr, node: ir.Node, tangents: Tangents, kept: Sequence[ir.Node]) -> bool:
    """Whether ``total`` has the shape of the output: by what is known, or as every input took part in it."""
    output = node.outputs[0]
    if _equal(total.value.shape, output.shape):
        return True
    if any(each.op_type in _SHAPING for each in kept):
        return False
    read = {total.value, *(v for each in kept for v in each.inputs)}
    if output in read:
        return True
    pairs = [(x, t) for x, t in zip(node.inputs, tangents, strict=True) if x is not None]
    return all(x in read or (t is not None and t.value in read) or _is_scalar(x) for x, t in pairs)


def _equal(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    if one is None or other is None or one.rank() != other.rank():
        return False
    return all(same_dim(a, b) for a, b in zip(one.dims, other.dims, strict=True))


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() == 0
