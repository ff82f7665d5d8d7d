"""A recorded reverse pass as a linear map of its cotangents: what does not depend on them is done once, outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, zeros_like
from onnx_cfad.adjoint.replay import copy_nodes
from onnx_cfad.graph.regions import captured_by

_WIDE = frozenset(
    ("Add", "Concat", "Div", "Expand", "Gemm", "Identity", "MatMul", "Mul", "Neg", "ReduceSum", "Reshape", "Slice")
    + ("Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where")
)


@dataclasses.dataclass(frozen=True)
class LinearMap:
    """Copies of recorded nodes, from cotangents to results; linear, so that a zero result may be left out.

    Attributes:
        entries: The values that stand for the cotangents.
        nodes: The recorded nodes that depend on them, in order.
    """

    entries: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]

    @property
    def can_widen(self) -> bool:
        """Whether all of it is sums and products of float32, which runtimes compute in float64 too."""
        values = [v for node in self.nodes for v in node.outputs]
        kinds = {v.dtype for v in (*self.entries, *values)}
        return kinds == {ir.DataType.FLOAT} and all(n.op_type in _WIDE and n.domain == "" for n in self.nodes)

    def widened(self, builder: Builder, results: Sequence[Expr | None]) -> tuple[LinearMap, list[Expr | None]]:
        """The same map of float64, and its results.

        Args:
            builder: Records what makes float64 of the values that the map captures.
            results: What was recorded as the results.
        """
        double = ir.TensorType(ir.DataType.DOUBLE)
        mapping: dict[ir.Value, ir.Value] = {}
        for entry in self.entries:
            mapping[entry] = ir.Value(name=builder.namer.fresh(entry.name or ""), type=double, shape=entry.shape)
        made = {value for node in self.nodes for value in node.outputs}
        for value in dict.fromkeys(v for node in self.nodes for v in node.inputs if v is not None):
            if value not in made and value not in mapping and value.dtype == ir.DataType.FLOAT:
                mapping[value] = builder.expr(value).cast(ir.DataType.DOUBLE).value
        nodes = copy_nodes(self.nodes, mapping, builder.namer)
        for node in nodes:
            for output in node.outputs:
                output.type = double
        entries = tuple(mapping[entry] for entry in self.entries)
        wide = [None if r is None else builder.expr(mapping.get(r.value, r.value)) for r in results]
        return LinearMap(entries, tuple(nodes)), wide

    def apply(
        self, builder: Builder, cotangents: Sequence[Expr], results: Sequence[Expr | None], like: Sequence[ir.Value]
    ) -> list[Expr]:
        """Records the map with ``builder``.

        Args:
            builder: Records it.
            cotangents: One for each of ``entries``, of its type.
            results: What was recorded as the results; None for a result that is zero.
            like: A value with the shape and type of each result.
        """
        wanted = [result.value for result in results if result is not None]
        mapping = {entry: ct.value for entry, ct in zip(self.entries, cotangents, strict=True)}
        builder.nodes.extend(copy_nodes(needed_for(self.nodes, wanted), mapping, builder.namer))
        found: list[Expr] = []
        for result, primal in zip(results, like, strict=True):
            if result is None:
                found.append(zeros_like(builder.expr(primal)))
                continue
            value = mapping.get(result.value, result.value)
            if value.shape is None and value.producer() is not None:
                value.shape = primal.shape
            found.append(builder.expr(value))
        return found


def split_linear(nodes: Iterable[ir.Node], entries: Iterable[ir.Value]) -> tuple[list[ir.Node], list[ir.Node]]:
    """The nodes that do not depend on ``entries``, and those that do, each in order."""
    moving, steady, linear = set(entries), list[ir.Node](), list[ir.Node]()
    for node in nodes:
        if any(v in moving for v in (*node.inputs, *captured_by(node)) if v is not None):
            linear.append(node)
            moving.update(node.outputs)
        else:
            steady.append(node)
    return steady, linear


def needed_for(nodes: Sequence[ir.Node], results: Iterable[ir.Value]) -> list[ir.Node]:
    """The nodes that ``results`` depend on, in order."""
    needed, kept = set(results), list[ir.Node]()
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(v for v in (*node.inputs, *captured_by(node)) if v is not None)
    return kept[::-1]


def emptied(graph: ir.Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """Takes all nodes and constants out of a graph, and gives them."""
    graph.outputs.clear()
    nodes, constants = list(graph), list(graph.initializers.values())
    graph.remove(nodes)
    graph.initializers.clear()
    return nodes, constants
