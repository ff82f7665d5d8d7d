"""A graph of the control tree as statements: runs of straight-line nodes become fused kernels. Runs in a child.

Nodes wait until something needs their results, so that as many as possible are fused. A reshape, a row of a tensor and
the transposed operand of a Gemm are no computation: they are other views of the same elements. In the body of a loop,
what depends on outer values alone is computed before the loop.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import GraphProto, NodeProto, numpy_helper

from onnx_cfad.targets.tvm import loop_graph as graphs
from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_function import Function
from onnx_cfad.targets.tvm.loop_kernels import Kernel, inlined, is_array, kernels_of
from onnx_cfad.targets.tvm.loop_tvm import tirx
from onnx_cfad.targets.tvm.loop_views import Array, View, copy, product

_SMALL = 4096  # elements: a copy of so many costs less than what its place would keep from being fused


class Region(abc.ABC):
    """The main graph, a body or a branch on its way to statements.

    Args:
        function: The function.
        graph: The graph.
        views: Where the values are that are known already, outer ones included.
        constants: Constants of the graphs around.
        wanted: Where values of this graph have to go.
        before: Takes statements that run once, before the loop whose body this is; None elsewhere.
    """

    def __init__(
        self,
        function: Function,
        graph: GraphProto,
        views: dict[str, View],
        constants: Mapping[str, Array],
        wanted: dict[str, list[View]],
        before: list[Any] | None,
    ) -> None:
        self.function, self.graph, self.views, self.wanted, self.before = function, graph, views, wanted, before
        self.constants = {**constants, **{t.name: numpy_helper.to_array(t) for t in graph.initializer}}
        self.declared = graphs.declared(graph)
        self.fixed = set(views) - {value.name for value in graph.input}
        self.statements: list[Any] = []
        self.pending: list[NodeProto] = []
        self.later: list[NodeProto] = list(graph.node)
        self.placed: set[str] = set()

    @abc.abstractmethod
    def control(self, node: NodeProto) -> None:
        """Adds the statements of a Loop, Scan or If."""

    def run(self) -> list[Any]:
        """The statements.

        Raises:
            Refused: The graph cannot be part of one function; with the reason.
        """
        while self.later:
            self.take(self.later.pop(0))
        self.flush()
        for name, places in self.wanted.items():
            for place in places[name in self.placed :]:
                self.statements.append(copy(self.view(name), place))
        return self.statements

    def take(self, node: NodeProto) -> None:
        """Adds a node, or lets it wait."""
        if node.domain not in ("", "ai.onnx"):
            raise Refused(f"{node.op_type} of {node.domain}")
        value = graphs.constant_of(node)
        if value is not None:
            self.constants[node.output[0]] = value
        elif node.op_type in graphs.CONTROL:
            self.flush(node)
            self.control(node)
        else:
            node = self.with_plain_operand(node)
            if not self.is_view(node):
                self.pending.append(node)

    def view(self, name: str) -> View:
        """Where a value is; a constant becomes a parameter."""
        if name not in self.views:
            if name not in self.constants:
                raise Refused(f"the value '{name}' is not computed")
            self.views[name] = self.function.constant(self.constants[name])
        return self.views[name]

    def shape(self, name: str) -> tuple[Any, ...] | None:
        """The shape of a declared value; None where it is not known."""
        return self.function.extents(graphs.dims(self.declared[name]) if name in self.declared else None)

    def waits(self, name: str) -> bool:
        """Whether a value is computed by a node that waits."""
        return any(name in node.output for node in self.pending)

    def is_view(self, node: NodeProto) -> bool:
        """Gives the result of a reshape or a row a place without computing anything; whether that was possible."""
        source, name = node.input[0] if node.input else "", node.output[0]
        if node.op_type == "Gather":
            return self.row(node)
        if node.op_type not in graphs.RESHAPES or source in self.constants:
            return False
        shape = self.shape(name)
        if self.waits(source):
            if shape is None or not _is_large(shape):
                return False
            self.flush(node)
        if source not in self.views:
            return False
        view = self.views[source]
        if node.op_type != "Identity":
            reshaped = view.reshaped(shape) if shape is not None else None
            if reshaped is None:
                return False
            view = reshaped
        self.define(name, view, source in self.fixed)
        return True

    def row(self, node: NodeProto) -> bool:
        """``Gather(x, i)`` for a number i."""
        data, index = node.input
        known = self.views.get(index)
        if known is None or known.shape or data not in {*self.views, *self.constants}:
            return False
        view = self.view(data)
        axis = graphs.attributes(node).get("axis", 0) % max(len(view.shape), 1)
        extent = view.shape[axis] if isinstance(view.shape[axis], tirx.Expr) else tirx.const(view.shape[axis], "int64")
        position = known.scalar
        if position is None:
            position = known.load().astype("int64")
            position = tirx.Select(position < 0, position + extent, position)
        if known.bound is None or not isinstance(view.shape[axis], int) or known.bound > view.shape[axis]:
            position = tirx.max(tirx.min(position, extent - 1), tirx.const(0, "int64"))  # never outside of the tensor
        self.define(node.output[0], view.row(axis, position), index in self.fixed and data in self.fixed)
        return True

    def with_plain_operand(self, node: NodeProto) -> NodeProto:
        """A Gemm that transposes its first operand as one that reads it in another order."""
        source = node.input[0] if node.input else ""
        if node.op_type != "Gemm" or not graphs.attributes(node).get("transA", 0) or source in self.constants:
            return node
        if self.waits(source):
            self.flush(node)
        if source not in self.views or (self.before is not None and source in self.fixed):
            return node  # an outer value is transposed once, before the loop
        view, name = self.views[source], f"{source} transposed"
        self.views[name] = View(view.buffer, view.shape[::-1], view.strides[::-1], view.offset)
        return graphs.changed(node, {0: name}, without="transA")

    def define(self, name: str, view: View, fixed: bool) -> None:
        """Says where a value is, and whether it is the same in every iteration."""
        self.views[name] = view
        if fixed:
            self.fixed.add(name)

    def flush(self, following: NodeProto | None = None) -> None:
        """Turns the nodes that wait into kernels, before the node ``following`` and those that come later."""
        nodes, self.pending = self.pending, []
        if not nodes:
            return
        later = [*([following] if following is not None else []), *self.later]
        needed = {*graphs.reads(later), *(value.name for value in self.graph.output), *self.wanted}
        made = [name for node in nodes for name in node.output if name]
        outputs = [name for name in made if name in needed]
        read = [name for name in graphs.reads(nodes) if name not in made]
        constants = {name: self.constants[name] for name in read if name in self.constants}
        views = {name: self.view(name) for name in read if name not in constants}
        types = {name: (view.dtype, [self.function.spelled(d) for d in view.shape]) for name, view in views.items()}
        model = graphs.straight_model(nodes, types, constants, outputs, self.function.opset)
        kernels = kernels_of(model)
        names = {result: name for name, result in zip(outputs, kernels.outputs, strict=True) if isinstance(result, str)}
        fixed = {name for name in views if name in self.fixed}
        for kernel in kernels.calls:
            self.call(kernel, views, names, fixed)
        for name, result in zip(outputs, kernels.outputs, strict=True):
            if is_array(result):
                self.define(name, self.function.constant(result), True)
            else:
                self.define(name, views[result], result in fixed)

    def call(self, kernel: Kernel, views: dict[str, View], names: Mapping[str, str], fixed: set[str]) -> None:
        """Adds a kernel; its results join ``views``, and ``fixed`` where they do not depend on the iteration."""
        operands = [self.function.constant(o) if is_array(o) else views[o] for o in kernel.operands]
        early = self.before is not None and all(is_array(o) or o in fixed for o in kernel.operands)
        for result, dims, dtype in zip(kernel.results, kernel.shapes, kernel.dtypes, strict=True):
            shape = tuple(self.function.read(d) for d in dims)
            views[result] = self.place("" if early else names.get(result, ""), shape, dtype)
        statement = inlined(kernel, [*operands, *(views[r] for r in kernel.results)], self.function.buffer)
        if early and self.before is not None:
            self.before.append(statement)
            fixed.update(kernel.results)
        else:
            self.statements.append(statement)

    def place(self, name: str, shape: tuple[Any, ...], dtype: str) -> View:
        """Where a result goes: to where it is wanted, else to a buffer of its own."""
        if name in self.wanted and name not in self.placed:
            self.placed.add(name)
            return self.wanted[name][0]
        return self.function.space(shape, dtype, name or "value")


def _is_large(shape: Sequence[Any]) -> bool:
    return any(not isinstance(d, int) for d in shape) or product(shape) > _SMALL
