"""SequenceMap written as the Loop that its specification gives, so that it is run backwards as a Loop."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer

_SEQUENCES = frozenset(
    ("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap", "SplitToSequence")
)


class ExpandSequenceMapPass(ir.passes.InPlacePass):
    """Replaces every SequenceMap, in the main graph and in all subgraphs, by a Loop that collects its results.

    Given ``t = SequenceMap (s, w) <body: (e, v) => (r)>``, the result is
    ``n = SequenceLength (s); z = SequenceEmpty (); t = Loop (n, , z) <body: e = SequenceAt (s, i); ...;
    next = SequenceInsert (carry, r)>`` where the tensor ``w`` takes the place of ``v``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands inner ones first."""
        namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, self._graph(model, model.graph, namer))

    def _graph(self, model: ir.Model, graph: ir.Graph, namer: Namer) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(model, subgraph, namer)
            if node.op_type == "SequenceMap" and node.domain in ("", "ai.onnx"):
                with Blamed(node, "it cannot be written as a Loop", model):
                    _expand(graph, node, namer)
                changed = True
        return changed


def _expand(graph: ir.Graph, node: ir.Node, namer: Namer) -> None:
    body = node.attributes["body"].as_graph()
    source = node.inputs[0]
    assert source is not None
    length = _node(namer, "SequenceLength", [source], ir.TensorType(ir.DataType.INT64))
    types = [_sequence_of(output) for output in body.outputs]
    empties = [
        _node(namer, "SequenceEmpty", [], type_, [ir.AttrInt64("dtype", int(type_.elem_type.dtype))]) for type_ in types
    ]
    _as_loop_body(body, node, types, namer)
    loop = ir.Node(
        "",
        "Loop",
        [length.outputs[0], None, *(empty.outputs[0] for empty in empties)],
        [ir.AttrGraph("body", body)],
        num_outputs=len(node.outputs),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    for output, type_ in zip(loop.outputs, types, strict=True):
        output.type = type_
    ir.convenience.replace_nodes_and_values(graph, node, [node], [length, *empties, loop], node.outputs, loop.outputs)


def _as_loop_body(body: ir.Graph, node: ir.Node, types: Sequence[ir.SequenceType], namer: Namer) -> None:
    """Gives ``body`` the inputs and outputs of a Loop body; elements are read and results inserted inside."""
    index = ir.Value(name=namer.fresh("index"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    going = ir.Value(name=namer.fresh("going"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    reads: list[ir.Node] = []
    for position, (outer, inner) in enumerate(zip(node.inputs, list(body.inputs), strict=True)):
        assert outer is not None
        if position == 0 or _is_sequence(outer):
            reads.append(_node(namer, "SequenceAt", [outer, index], inner.type))
            outer = reads[-1].outputs[0]  # noqa: PLW2901 - what the body reads instead of its input
        ir.convenience.replace_all_uses_with(inner, outer, replace_graph_outputs=True)
    first = next(iter(body), None)
    if first is None:
        body.extend(reads)
    else:
        body.insert_before(first, reads)
    carries = [ir.Value(name=namer.fresh("collected"), type=type_) for type_ in types]
    inserts = [
        _node(namer, "SequenceInsert", [carry, result], type_)
        for carry, result, type_ in zip(carries, body.outputs, types, strict=True)
    ]
    proceed = _node(namer, "Identity", [going], going.type)
    body.extend([*inserts, proceed])
    body.inputs[:] = [index, going, *carries]
    body.outputs[:] = [proceed.outputs[0], *(insert.outputs[0] for insert in inserts)]


def _node(
    namer: Namer,
    op_type: str,
    inputs: Sequence[ir.Value],
    type_: ir.TypeProtocol | None,
    attributes: Sequence[ir.Attr] = (),
) -> ir.Node:
    node = ir.Node("", op_type, inputs, attributes, name=namer.fresh(f"map/{op_type}"))
    node.outputs[0].name, node.outputs[0].type = namer.fresh(f"map.{op_type}"), type_
    return node


def _sequence_of(element: ir.Value) -> ir.SequenceType:
    assert element.dtype is not None, "ONNX wants the outputs of a graph to have a type"
    return ir.SequenceType(ir.TensorType(element.dtype))


def _is_sequence(value: ir.Value) -> bool:
    """Whether ``value`` is a sequence, from its type or, where it has none yet, from what makes it."""
    if value.type is not None:
        return isinstance(value.type, ir.SequenceType)
    node = value.producer()
    if node is None:
        return False
    if node.op_type == "If":
        branch = node.attributes["then_branch"].as_graph()
        return _is_sequence(branch.outputs[value.index() or 0])
    position = value.index() or 0
    if node.op_type == "Loop":
        initial = node.inputs[2 + position] if 2 + position < len(node.inputs) else None
        return initial is not None and _is_sequence(initial)
    if node.op_type == "Identity":
        return node.inputs[0] is not None and _is_sequence(node.inputs[0])
    return node.op_type in _SEQUENCES
