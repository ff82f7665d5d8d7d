"""Whether two nodes, or two subgraphs, compute the same from the same values."""

from __future__ import annotations

import onnx_ir as ir

Pairs = dict[ir.Value, ir.Value]


def alike_graphs(a: ir.Graph, b: ir.Graph, pairs: Pairs | None = None) -> bool:
    """Whether ``a`` and ``b`` have the same nodes in the same order, over the same outer values.

    Args:
        a: A subgraph.
        b: Another one.
        pairs: Values of the scope of ``a`` with those of the scope of ``b`` that equal them; more are entered.
    """
    pairs = {} if pairs is None else pairs
    nodes = (list(a), list(b))
    if len(nodes[0]) != len(nodes[1]) or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
        return False
    pairs.update(zip(a.inputs, b.inputs, strict=True))
    if not all(_alike_nodes(x, y, pairs) for x, y in zip(*nodes, strict=True)):
        return False
    return all(_same(x, y, pairs) for x, y in zip(a.outputs, b.outputs, strict=True))


def operation_key(node: ir.Node) -> tuple[object, ...]:
    """What makes two nodes without subgraphs the same but for what they read."""
    attributes = sorted((name, _content(attribute)) for name, attribute in node.attributes.items())
    return (node.domain, node.op_type, node.overload, tuple(attributes), len(node.outputs))


def constant_key(value: ir.Value) -> tuple[object, ...] | None:
    """The content of a small initializer or Constant; None for what is none."""
    node = value.producer()
    made = node is not None and node.op_type == "Constant"
    tensor = ir.convenience.get_const_tensor(value) if made or value.is_initializer() else None
    if tensor is None or value.is_graph_input() or tensor.nbytes > _SMALL or tensor.dtype.is_string():
        return None
    return (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())


_SMALL = 1 << 16  # bytes


def _alike_nodes(a: ir.Node, b: ir.Node, pairs: Pairs) -> bool:
    if (a.domain, a.op_type, a.overload) != (b.domain, b.op_type, b.overload):
        return False
    if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs) or set(a.attributes) != set(b.attributes):
        return False
    if not all(_same(x, y, pairs) for x, y in zip(a.inputs, b.inputs, strict=True)):
        return False
    if not all(_alike_attributes(a.attributes[name], b.attributes[name], pairs) for name in a.attributes):
        return False
    pairs.update(zip(a.outputs, b.outputs, strict=True))
    return True


def _alike_attributes(a: ir.Attr, b: ir.Attr, pairs: Pairs) -> bool:
    if a.type != b.type or a.is_ref() or b.is_ref():
        return False
    if a.type == ir.AttributeType.GRAPH:
        return alike_graphs(a.as_graph(), b.as_graph(), pairs)
    return a.type != ir.AttributeType.GRAPHS and _content(a) == _content(b)


def _content(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        content = tensor.tobytes() if not tensor.dtype.is_string() else tensor.numpy().tolist()
        return repr((tensor.dtype, tuple(tensor.shape.numpy()), content))
    return repr((attribute.type, attribute.value))


def _same(a: ir.Value | None, b: ir.Value | None, pairs: Pairs) -> bool:
    if a is None or b is None:
        return a is b
    if a is b or pairs.get(a) is b:
        return True
    key = constant_key(a)
    return key is not None and key == constant_key(b)
