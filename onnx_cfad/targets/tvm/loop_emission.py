"""An ONNX graph with loops as the statements of one TIR function: loops become serial loops. Runs in a child.

A carry has two buffers, one that an iteration reads and one that it writes; slices of scan inputs are read where they
lie, and scan outputs (the tape) are written in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onnx import GraphProto, NodeProto

from onnx_cfad.targets.tvm import loop_graph as graphs
from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_function import Function
from onnx_cfad.targets.tvm.loop_region import Region
from onnx_cfad.targets.tvm.loop_tvm import tirx
from onnx_cfad.targets.tvm.loop_views import View, copy, loop, sequence


def emit(function: Function, graph: GraphProto, inputs: Mapping[str, View], outputs: Mapping[str, View]) -> list[Any]:
    """The statements that compute ``graph``.

    Args:
        function: The function that they are part of.
        graph: The main graph of a model.
        inputs: Where its inputs are.
        outputs: Where its outputs have to go.

    Raises:
        Refused: With the reason.
    """
    wanted = {name: [view] for name, view in outputs.items()}
    return _Region(function, graph, dict(inputs), {}, wanted, None).run()


@dataclasses.dataclass
class _Iteration:
    """What a Loop and a Scan have in common.

    Attributes:
        time: The number of the iteration.
        trips: How many there are.
        body: The body.
        views: Where the body's inputs are that are no carries.
        first: What an iteration begins with.
        initials: Outer names of the initial carries.
        entries: Body inputs of the carries.
        exits: Body outputs of the carries.
        rows: Body outputs that are stacked, with the axis, and whether the last comes first.
    """

    time: Any
    trips: Any
    body: GraphProto
    initials: list[str]
    entries: list[str]
    exits: list[str]
    rows: list[tuple[str, int, bool]]
    views: dict[str, View] = dataclasses.field(default_factory=dict[str, View])
    first: list[Any] = dataclasses.field(default_factory=list[Any])


class _Region(Region):
    def control(self, node: NodeProto) -> None:
        if node.op_type == "If":
            self.branch(node)
        else:
            self.repeat(node, self.scan(node) if node.op_type == "Scan" else self.loop(node))

    def loop(self, node: NodeProto) -> _Iteration:
        body, count = graphs.attributes(node)["body"], len(node.input) - 2
        start = node.input[1] if len(node.input) > 1 else ""
        if not graphs.goes_on(body):
            raise Refused("a Loop whose body computes its condition")
        if start and not (start in self.constants and bool(self.constants[start].reshape(-1)[0])):
            raise Refused("a Loop whose initial condition is computed")
        exits = [value.name for value in body.output[1:]]
        time, trips = tirx.Var("t", "int64"), self.trips(node.input[0], stacks=len(exits) > count)
        rows = [(name, 0, False) for name in exits[count:]]
        entries = [value.name for value in body.input[2:]]
        made = _Iteration(time, trips, body, list(node.input[2:]), entries, exits[:count], rows)
        used = {*graphs.reads(body.node), *(value.name for value in body.output)}
        for value, given, dtype in zip(body.input, (time, tirx.const(True, "bool")), ("int64", "bool"), strict=False):
            if value.name in used:
                view = self.function.space((), dtype, value.name)
                known = {"scalar": time, "bound": trips if isinstance(trips, int) else None} if dtype == "int64" else {}
                made.views[value.name] = dataclasses.replace(view, **known)
                made.first.append(view.store(given))
        return made

    def trips(self, limit: str, *, stacks: bool) -> Any:
        """The trip count: known by a number or a symbol where rows are stacked, whose room depends on it."""
        if limit in self.constants:
            return max(int(self.constants[limit].reshape(-1)[0]), 0)
        if limit in self.function.symbols:
            return self.function.symbols[limit]
        if stacks or not limit:
            raise Refused("a Loop stacks rows and computes its trip count" if limit else "a Loop without a trip count")
        view = self.view(limit)
        return tirx.max(view.load([0] * len(view.shape)), tirx.const(0, "int64"))

    def scan(self, node: NodeProto) -> _Iteration:
        given = graphs.attributes(node)
        body, sliced = given["body"], given["num_scan_inputs"]
        count, stacked = len(node.input) - sliced, len(node.output) - (len(node.input) - sliced)
        axes, back = (given.get(f"scan_input_{key}", [0] * sliced) for key in ("axes", "directions"))
        axes_out, back_out = (given.get(f"scan_output_{key}", [0] * stacked) for key in ("axes", "directions"))
        sources = [self.view(name) for name in node.input[count:]]
        time, trips = tirx.Var("t", "int64"), sources[0].shape[axes[0] % len(sources[0].shape)]
        entries, exits = [v.name for v in body.input], [v.name for v in body.output]
        rows = list(zip(exits[count:], axes_out, map(bool, back_out), strict=True))
        made = _Iteration(time, trips, body, list(node.input[:count]), entries[:count], exits[:count], rows)
        for name, source, axis, reverse in zip(entries[count:], sources, axes, back, strict=True):
            made.views[name] = source.row(axis, trips - 1 - time if reverse else time)
        return made

    def repeat(self, node: NodeProto, it: _Iteration) -> None:
        """The serial loop of a Loop or a Scan."""
        wanted: dict[str, list[View]] = {}
        last: list[Any] = []
        views = dict(self.views)
        declared = graphs.declared(it.body)
        for initial, entry, exit_, final in zip(it.initials, it.entries, it.exits, node.output, strict=False):
            source = self.view(initial)
            current = self.target(final, source.shape, source.dtype)
            self.statements.append(copy(source, current))
            views[entry] = current
            if exit_ != entry:
                shape = self.function.extents(graphs.dims(declared[exit_])) if exit_ in declared else None
                if shape is None or not current.has_shape(shape):
                    raise Refused(f"the carry '{entry}' may change its shape")
                following = self.function.space(source.shape, source.dtype, exit_)
                wanted.setdefault(exit_, []).append(following)
                last.append(copy(following, current))
        for (element, axis, reverse), name in zip(it.rows, node.output[len(it.initials) :], strict=True):
            if not name:
                continue
            row = self.function.extents(graphs.dims(declared[element]) if element in declared else None)
            if row is None:
                raise Refused(f"the shape of '{element}' is not known")
            where = axis % (len(row) + 1)
            shape = (*row[:where], it.trips, *row[where:])
            stacked = self.target(name, shape, graphs.element_type(declared[element]))
            wanted.setdefault(element, []).append(stacked.row(where, it.trips - 1 - it.time if reverse else it.time))
        before: list[Any] = []
        region = _Region(self.function, it.body, {**views, **it.views}, self.constants, wanted, before)
        statements = [*it.first, *region.run(), *last]
        self.statements += [*before, loop(it.time, it.trips, sequence(statements))]

    def target(self, name: str, shape: tuple[Any, ...], dtype: str) -> View:
        """Where the result of a loop or a branch goes; known from here on by its name."""
        view = self.place(name, shape, dtype)
        if name:
            self.views[name] = view
        return view

    def branch(self, node: NodeProto) -> None:
        sides = graphs.attributes(node)
        for name, value in zip(node.output, sides["then_branch"].output, strict=True):
            shape = self.shape(name)
            if shape is None:
                raise Refused(f"the shape of '{name}' depends on a branch")
            self.target(name, shape, graphs.element_type(value))
        cases = [self.side(node, sides[key]) for key in ("then_branch", "else_branch")]
        predicate = self.view(node.input[0])
        self.statements.append(tirx.IfThenElse(predicate.load([0] * len(predicate.shape)), *cases))

    def side(self, node: NodeProto, graph: GraphProto) -> Any:
        wanted: dict[str, list[View]] = {}
        for value, name in zip(graph.output, node.output, strict=True):
            wanted.setdefault(value.name, []).append(self.views[name])
        return sequence(_Region(self.function, graph, dict(self.views), self.constants, wanted, None).run())
