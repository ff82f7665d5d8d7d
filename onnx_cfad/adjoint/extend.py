"""Control-flow nodes extended by what the reverse pass needs: more stacked outputs, carries, branch outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.dims import Dim, same_dim, with_axis
from onnx_cfad.graph.regions import is_loop, loop_site
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer


@dataclasses.dataclass(frozen=True)
class NewCarry:
    """A carry to add to a Loop: its initial value outside, its entry (a fresh value) and exit inside the body."""

    initial: ir.Value
    entry: ir.Value
    exit: ir.Value


@dataclasses.dataclass(frozen=True)
class Extended:
    """A loop with more outputs: the new node, the final values of new carries, the new stacks ([trips, ...])."""

    node: ir.Node
    finals: tuple[ir.Value, ...]
    stacked: tuple[ir.Value, ...]


def extend_loop(
    node: ir.Node,
    carries: Sequence[NewCarry],
    elements: Sequence[ir.Value],
    trip_dim: Dim,
    namer: Namer,
    *,
    certain: bool = False,
) -> Extended:
    """Adds carries and stacked outputs to a Loop or Scan, which a new node of the same name replaces.

    Args:
        node: The Loop or Scan; only a Loop takes new carries.
        carries: Carries to add.
        elements: Values of the body to stack, one slice an iteration.
        trip_dim: The dimension that stands for the trip count.
        namer: For new names.
        certain: The loop runs at least once.
    """
    site = loop_site(node)
    position = len(site.carries)
    for offset, carry in enumerate(carries):
        site.body.inputs.append(carry.entry)
        site.body.outputs.insert(1 + position + offset, returned(site.body, carry.exit, namer))
    for element in elements:
        site.body.outputs.append(returned(site.body, element, namer, copy=site.is_scan))
    inputs = [*node.inputs, *([None] * (2 - len(node.inputs)) if carries else ()), *(c.initial for c in carries)]
    count = len(node.outputs) + len(carries) + len(elements)
    new = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        _attributes(node, len(elements)),
        num_outputs=count,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    kept = [*new.outputs[:position], *new.outputs[position + len(carries) : count - len(elements)]]
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], node.outputs, kept)
    finals = list(new.outputs[position : position + len(carries)])
    for final, carry in zip(finals, carries, strict=True):
        final.name, final.type = namer.fresh(f"{carry.entry.name}.final"), carry.entry.type
        final.shape = carry.entry.shape
    stacked = list(new.outputs[count - len(elements) :])
    for value, element in zip(stacked, elements, strict=True):
        value.name, value.type = namer.fresh(f"tape.{element.name}"), element.type
        value.shape = None if element.shape is None else with_axis(_stackable(element.shape, certain), 0, trip_dim)
    return Extended(new, tuple(finals), tuple(stacked))


def _stackable(shape: ir.Shape, certain: bool) -> ir.Shape:
    """ONNX Runtime gives a stack of no rows 0 for every dimension that is not declared as a number."""
    return shape if certain else ir.Shape([d if isinstance(d, int) else None for d in shape.dims])


def extend_branch(node: ir.Node, branch: ir.Graph, value: ir.Value, namer: Namer, *, full: bool = False) -> ir.Value:
    """Adds an output to an If that hands out ``value`` of ``branch``; the other branch gives an empty placeholder.

    Args:
        node: The If.
        branch: One of its branches.
        value: A value of that branch.
        namer: For new names.
        full: The placeholder has the shape of ``value`` where that is static, so that a loop around can stack it.
    """
    full = full and stackable(value)
    node.resize_outputs(len(node.outputs) + 1)
    output = node.outputs[-1]
    output.name, output.type = namer.fresh(f"saved.{value.name}"), value.type
    if value.shape is not None:
        output.shape = value.shape if full else ir.Shape([None] * value.shape.rank())
    for attribute in node.attributes.values():
        graph = attribute.as_graph()
        own = graph is branch
        graph.outputs.append(
            returned(graph, value, namer, copy=full) if own else _placeholder(graph, value, namer, full=full)
        )
    return output


def share_output(
    node: ir.Node, branch: ir.Graph, output: ir.Value, value: ir.Value, namer: Namer, *, stacked: bool
) -> None:
    """Has ``branch`` hand out ``value`` by ``output`` of the If ``node``, in place of a placeholder.

    Args:
        node: The If.
        branch: One of its branches.
        output: An output for which ``branch`` gives a placeholder.
        value: A value of ``branch``.
        namer: For new names.
        stacked: A loop around stacks the output.
    """
    position = next(k for k, other in enumerate(node.outputs) if other is output)
    placeholder = branch.outputs[position]
    branch.outputs[position] = returned(branch, value, namer, copy=stacked)
    maker = placeholder.producer()
    if maker is not None and not placeholder.uses():
        branch.remove(maker)
    elif placeholder.is_initializer() and placeholder.name is not None:
        del branch.initializers[placeholder.name]
    if output.shape is not None and value.shape is not None:
        other = next(graph for graph in subgraphs_of(node) if graph is not branch).outputs[position].shape
        same = other is not None and all(map(same_dim, other.dims, value.shape.dims))
        output.shape = value.shape if same else output.shape


def stackable(value: ir.Value) -> bool:
    """Whether a loop can stack ``value`` whatever a branch gives in its place: its shape is known."""
    return isinstance(value.type, ir.TensorType) and value.shape is not None and value.shape.is_static()


def returned(graph: ir.Graph, value: ir.Value, namer: Namer, *, copy: bool = False) -> ir.Value:
    """``value`` as a further output of ``graph``: through an Identity where it is returned already or made elsewhere.

    ONNX Runtime 1.32 gives silent zeros for a Scan body that returns its own input, or one value twice. And it lets
    the operator that makes a stacked Scan output write into the unaligned slice of the whole, where vectorised
    functions round differently: ``copy`` keeps the primal value as it was.
    """
    node = value.producer()
    if not copy and node is not None and node.graph is graph and value not in graph.outputs:
        return value
    identity = ir.Node("", "Identity", [value], name=namer.fresh("grad/Identity"))
    identity.outputs[0].name, identity.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
    identity.outputs[0].shape = value.shape
    graph.append(identity)
    return identity.outputs[0]


def _placeholder(graph: ir.Graph, like: ir.Value, namer: Namer, *, full: bool) -> ir.Value:
    """What a branch returns in place of a value of the other one: a constant of its own, as small as may be."""
    if isinstance(like.type, ir.SequenceType):
        node = ir.Node("", "SequenceEmpty", [], [ir.AttrInt64("dtype", int(like.type.elem_type.dtype))])
        node.name = namer.fresh("grad/absent")
        node.outputs[0].name, node.outputs[0].type = namer.fresh("absent"), like.type
        graph.append(node)
        return node.outputs[0]
    assert like.dtype is not None
    shape = (0,) * like.shape.rank() if like.shape is not None else (0,)
    shape = tuple(like.shape.numpy()) if full and like.shape is not None else shape
    name = namer.fresh("const.absent")
    tensor = ir.Tensor(np.zeros(shape, dtype=like.dtype.numpy()), dtype=like.dtype, name=name)
    value = ir.Value(name=name, type=like.type, shape=tensor.shape, const_value=tensor)
    graph.initializers.add(value)
    return value


def _attributes(node: ir.Node, more: int) -> list[ir.Attr]:
    """The node's attributes, with forward order along axis 0 for ``more`` further Scan outputs."""
    attributes = dict(node.attributes)
    if is_loop(node) and node.op_type == "Scan":
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in attributes:
                attributes[name] = ir.AttrInt64s(name, [*attributes[name].as_ints(), *[0] * more])
    return list(attributes.values())


def counting_carry(node: ir.Node, body: ir.Graph, index: ir.Value, namer: Namer) -> NewCarry:
    """A carry that ends as the number of iterations that ran: iteration number plus one, from zero."""
    int64 = ir.TensorType(ir.DataType.INT64)
    entry = ir.Value(name=namer.fresh("trips"), type=int64, shape=ir.Shape([]))
    zero = ir.Node("", "Constant", [], [ir.AttrInt64("value_int", 0)], name=namer.fresh("grad/zero"))
    one = ir.Node("", "Constant", [], [ir.AttrInt64("value_int", 1)], name=namer.fresh("grad/one"))
    add = ir.Node("", "Add", [index, one.outputs[0]], name=namer.fresh("grad/trips"))
    for made, hint in ((zero, "trips.zero"), (one, "trips.one"), (add, "trips.next")):
        value = made.outputs[0]
        value.name, value.type, value.shape = namer.fresh(hint), int64, ir.Shape([])
    _before(node, zero)
    body.extend([one, add])
    return NewCarry(zero.outputs[0], entry, add.outputs[0])


def sequence_carry(node: ir.Node, body: ir.Graph, element: ir.Value, namer: Namer) -> NewCarry:
    """A carry that collects ``element`` of every iteration in a sequence, for values whose shape varies."""
    assert element.dtype is not None
    type_ = ir.SequenceType(ir.TensorType(element.dtype))
    empty = ir.Node(
        "", "SequenceEmpty", [], [ir.AttrInt64("dtype", int(element.dtype))], name=namer.fresh("grad/empty")
    )
    entry = ir.Value(name=namer.fresh(f"tape.{element.name}"), type=type_)
    insert = ir.Node("", "SequenceInsert", [entry, element], name=namer.fresh("grad/SequenceInsert"))
    for made, hint in ((empty, "empty"), (insert, "next")):
        made.outputs[0].name, made.outputs[0].type = namer.fresh(f"tape.{element.name}.{hint}"), type_
    _before(node, empty)
    body.append(insert)
    return NewCarry(empty.outputs[0], entry, insert.outputs[0])


def _before(node: ir.Node, new: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, new)
