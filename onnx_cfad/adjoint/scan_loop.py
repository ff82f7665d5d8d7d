"""A Scan as a Loop that reads row i of its inputs in iteration i, for trip counts that cannot be cut evenly."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.graph.operator_types import keep_shape
from onnx_cfad.graph.regions import loop_site


def scan_to_loop(node: ir.Node, builder: Builder) -> ir.Node:
    """Replaces a Scan by a Loop and gives the Loop; the body's operators stay.

    Sliced inputs are laid out with the scanned axis first and in the order they are read; stacked outputs are laid out
    as the Scan had them.

    Args:
        node: The Scan.
        builder: Gives names and the opset; nothing is recorded with it.
    """
    site, before, rows = loop_site(node), builder.child(), builder.child()
    int64, boolean = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)
    index = rows.input("step", int64, ir.Shape([]))
    going = rows.input("going", boolean, ir.Shape([]))
    sources = [_rows_first(before.expr(x.source), x.axis, x.reverse) for x in site.inputs]
    length = sources[0].dim(0).squeeze([0])
    for source, entry in zip(sources, site.inputs, strict=True):
        row = op.Gather(rows.expr(source.value), index, axis=0)
        row.value.shape = entry.slice.shape
        ir.convenience.replace_all_uses_with(entry.slice, row.value, replace_graph_outputs=True)
    body = site.body
    for _ in site.inputs:
        body.inputs.pop()
    body.inputs.insert(0, going.value)
    body.inputs.insert(0, index.value)
    body.outputs.insert(0, rows.fresh_identity(going.value))
    first = next(iter(body), None)
    if first is None:
        body.extend(rows.nodes)
    else:
        body.insert_before(first, rows.nodes)
    for initializer in rows.initializers:
        body.initializers.add(initializer)
    node.attributes.pop("body")
    outs = before.call(
        "Loop",
        [length, before.constant(True), *(before.expr(c.initial) for c in site.carries)],
        {"body": body},
        types=[output.type for output in node.outputs if output.type is not None],
        outputs=len(node.outputs),
    )
    loop = outs[0].value.producer()
    assert loop is not None
    loop.name = node.name
    count = len(site.carries)
    results = [
        *outs[:count],
        *(_as_scanned(x, o.axis, o.reverse, o.stacked) for x, o in zip(outs[count:], site.outputs, strict=True)),
    ]
    for result, old in zip(results, node.outputs, strict=True):
        keep_shape(result.value, old.shape)
    graph = node.graph
    assert graph is not None
    for initializer in before.initializers:
        graph.initializers.add(initializer)
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], before.nodes, list(node.outputs), [r.value for r in results]
    )
    return loop


def _rows_first(x: Expr, axis: int, reverse: bool) -> Expr:
    """``x`` with the scanned axis first, in reading order."""
    if axis % max(x.rank, 1):
        axis %= x.rank
        x = op.Transpose(x, perm=[axis, *(k for k in range(x.rank) if k != axis)])
    return _flipped(x) if reverse else x


def _as_scanned(x: Expr, axis: int, reverse: bool, like: ir.Value) -> Expr:
    """A result stacked on axis 0 in the order it was made, laid out as the Scan would."""
    x = _flipped(x) if reverse else x
    if axis and like.shape is not None and axis % like.shape.rank():
        order = list(range(1, like.shape.rank()))
        order.insert(axis % like.shape.rank(), 0)
        x = op.Transpose(x, perm=order)
    return x


def _flipped(x: Expr) -> Expr:
    result = op.Slice(x, [-1], [-(2**62)], [0], [-1])
    result.value.shape = x.value.shape
    return result
