"""What a loop that is run backwards implicitly hands out, and its stand-in: the forward side of ``Implicit``."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.accelerated import accelerated
from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.adjoint.extend import NewCarry, counting_carry, extend_loop
from onnx_cfad.adjoint.linear import needed_for
from onnx_cfad.adjoint.replay import Copies, copy_graph, copy_node, copy_nodes
from onnx_cfad.graph.accelerated import plain_site
from onnx_cfad.graph.fixed_point import FixedPoint
from onnx_cfad.graph.regions import LoopSite, loop_site
from onnx_cfad.graph.stand_in import MARK, is_stand_in, stand_in
from onnx_cfad.graph.stopping import Condition, Joint, Test
from onnx_cfad.graph.types import Types
from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.names import Namer


def add_stand_in(
    node: ir.Node,
    point: FixedPoint,
    fallback: Adjoint | None,
    types: Types,
    builder: Builder,
    *,
    accelerate: bool = False,
) -> Prepared:
    """Has the loop record its trips and whether it met its tolerance, and puts the stand-in behind it.

    Args:
        node: The loop.
        point: What it iterates.
        fallback: How the loop is run backwards where it did not converge; None where it never is.
        types: What is known of shapes.
        builder: Gives names and the opset; nothing is recorded with it.
        accelerate: Have the loop take fewer iterations.
    """
    site, copies = plain_site(loop_site(node)), dict[ir.Graph, ir.Graph]()
    first, second = dict[ir.Value, ir.Value](), dict[ir.Value, ir.Value]()
    once_more = _once_more(site, point, builder, copies, first)
    renamed = dict.fromkeys(copies, first)
    again, loop = (None, None) if fallback is None else _again(site, point, builder, copies, second)
    renamed.update({copy: second for copy in copies if copy not in renamed})
    node = accelerated(node, point, builder) if accelerate else node
    count = len(loop_site(node).carries)
    extended, met = _record(node, point, builder)
    now = loop_site(extended)
    trips = now.carries[count].final
    if loop is not None:
        loop.replace_input_with(0, trips)
    graph, behind = extended.graph, builder.child()
    assert graph is not None
    predicate = behind.expr(met) if met is not None else op.Greater(behind.expr(trips), 0)
    for k, entering in zip(point.states, list(once_more), strict=False):
        entering.replace_input_with(0, now.carries[k].final)
    results = [now.carries[k].final for k in point.states]
    for value, entry in ((v, c.entry) for v, c in zip(results, (now.carries[k] for k in point.states), strict=True)):
        value.type, value.shape = value.type or entry.type, value.shape if value.shape is not None else entry.shape
    branches = {"then_branch": once_more, "else_branch": again or _results(results, builder), MARK: len(results)}
    kinds = [value.type for value in results if value.type is not None]
    behind.call("If", [predicate], branches, types=kinds, outputs=len(results))
    for made in reversed(behind.nodes):
        graph.insert_after(extended, made)
    for initializer in behind.initializers:
        graph.initializers.add(initializer)
    below = fallback.prepare(loop, types, builder) if fallback is not None and loop is not None else Prepared({})
    return dataclasses.replace(below, copies={**copies, **below.copies}, renamed={**renamed, **below.renamed})


def _once_more(
    site: LoopSite, point: FixedPoint, builder: Builder, copies: Copies, mapping: dict[ir.Value, ir.Value]
) -> ir.Graph:
    """The body from the results of the loop on: Identity nodes that read them, then the nodes of the body."""
    inner = builder.child()
    for k in point.states:
        carry = site.carries[k]
        mapping[carry.entry] = inner.fresh_identity(carry.final)
        mapping[carry.entry].shape = carry.entry.shape
    for k in point.invariants:
        mapping[site.carries[k].entry] = site.carries[k].initial
    initializers = [_constant(value, mapping, builder.namer) for value in site.body.initializers.values()]
    needed = set(needed_for(list(site.body), [site.carries[k].exit for k in point.states]))
    body = [n for n in site.body if n in needed or (is_stand_in(n) and stand_in(n).results[0].producer() in needed)]
    nodes = [*inner.nodes, *copy_nodes(body, mapping, builder.namer, copies)]
    exits = [mapping.get(site.carries[k].exit, site.carries[k].exit) for k in point.states]
    graph = ir.Graph([], [], nodes=nodes, initializers=initializers, name=builder.namer.fresh("once_more"))
    graph.outputs.extend(_copied(graph, value, builder) for value in exits)
    return graph


def _again(
    site: LoopSite, point: FixedPoint, builder: Builder, copies: Copies, mapping: dict[ir.Value, ir.Value]
) -> tuple[ir.Graph, ir.Node]:
    """A graph of a copy of the loop, which runs as often as its first input will say; and that copy."""
    own: Copies = {}
    body = copy_graph(site.body, mapping, builder.namer, own)
    copies.update({copy: original for copy, original in own.items() if copy is not body})
    count = len(site.carries)
    while len(body.outputs) > 1 + count:
        body.outputs.pop()
    body.outputs[0] = _copied(body, body.inputs[1], builder)
    loop = ir.Node(
        "",
        "Loop",
        [None, None, *(carry.initial for carry in site.carries)],
        [ir.AttrGraph("body", body)],
        num_outputs=count,
        name=builder.namer.fresh(f"{site.node.name or 'loop'}.again"),
    )
    for output, carry in zip(loop.outputs, site.carries, strict=True):
        output.name, output.type = builder.namer.fresh(f"{carry.final.name}.again"), carry.final.type
        output.shape = carry.final.shape
    graph = ir.Graph([], [], nodes=[loop], name=builder.namer.fresh("again"))
    graph.outputs.extend(_copied(graph, loop.outputs[k], builder) for k in point.states)
    return graph, loop


def _results(values: list[ir.Value], builder: Builder) -> ir.Graph:
    """A graph that hands out the results of the loop itself."""
    graph = ir.Graph([], [], nodes=[], name=builder.namer.fresh("again"))
    graph.outputs.extend(_copied(graph, value, builder) for value in values)
    return graph


def _record(node: ir.Node, point: FixedPoint, builder: Builder) -> tuple[ir.Node, ir.Value | None]:
    """The loop with carries for its trips and, where it has a tolerance, whether the last iteration met it."""
    site = loop_site(node)
    assert site.index is not None
    carries = [counting_carry(node, site.body, site.index, builder.namer)]
    if point.condition is not None:
        carries.append(_meeting_carry(node, site.body, point.condition, builder))
    extended = extend_loop(node, carries, [], 0, builder.namer)
    return extended.node, extended.finals[1] if len(carries) > 1 else None


def _meeting_carry(node: ir.Node, body: ir.Graph, condition: Condition, builder: Builder) -> NewCarry:
    """A carry that ends as whether the tolerance was met in the last iteration; false before the first."""
    inside = Builder(builder.namer, builder.opset)
    entry = ir.Value(name=builder.namer.fresh("met"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    met = _met(condition, inside, body, {})
    inside.append_to(body)
    false = ir.Node(
        "",
        "Constant",
        [],
        [ir.AttrTensor("value", ir.Tensor(np.asarray(False)))],
        name=builder.namer.fresh("grad/false"),
    )
    value = false.outputs[0]
    value.name, value.type, value.shape = builder.namer.fresh("met.none"), entry.type, ir.Shape([])
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, false)
    return NewCarry(value, entry, met.value)


def _met(condition: Condition, inside: Builder, body: ir.Graph, known: dict[ir.Value, ir.Value]) -> Expr:
    """Whether a condition's tests are met (bool scalar); false where what they compare is NaN."""
    if isinstance(condition, Joint):
        parts = [_met(part, inside, body, known) for part in condition.parts]
        result = parts[0]
        for part in parts[1:]:
            result = op.Or(result, part) if condition.every else op.And(result, part)
        return result
    assert isinstance(condition, Test)
    measure, threshold = (
        inside.expr(_brought_out(value, inside, body, known)) for value in (condition.measure, condition.threshold)
    )
    met = op.LessOrEqual(measure, threshold) if condition.strict else op.Less(measure, threshold)
    if condition.elements or measure.value.shape is None or measure.value.shape.rank() > 0:
        met = op.Greater(op.ReduceMin(met.cast(ir.DataType.INT32), keepdims=0), 0)
    return met


def _brought_out(value: ir.Value, inside: Builder, body: ir.Graph, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """``value``, or a copy of it in the body where it is computed in a branch of the condition."""
    if value.graph is None or value.graph not in graphs_of(body)[1:]:
        return value
    if value not in known:
        node = value.producer()
        if node is None:
            name = inside.namer.fresh(f"replay/{value.name}")
            copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
            inside.initializers.append(copy)
            known[value] = copy
        else:
            for operand in node.inputs:
                if operand is not None:
                    known[operand] = _brought_out(operand, inside, body, known)
            inside.nodes.append(copy_node(node, known, inside.namer))
    return known[value]


def _constant(value: ir.Value, mapping: dict[ir.Value, ir.Value], namer: Namer) -> ir.Value:
    name = namer.fresh(f"replay/{value.name}")
    mapping[value] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    return mapping[value]


def _copied(graph: ir.Graph, value: ir.Value, builder: Builder) -> ir.Value:
    """``value`` under a name of its own, made by ``graph``."""
    maker = Builder(builder.namer, builder.opset)
    result = maker.fresh_identity(value)
    graph.extend(maker.nodes)
    return result
