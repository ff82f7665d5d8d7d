"""The loop that runs a region backwards: carries of cotangents, inputs read in reverse, stacked results.

It is a Scan, guarded by an If where it might run zero times (ONNX Runtime refuses a Scan of length zero), or a Loop
where a carry is a sequence or changes shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.adjoint.subgraph_operators import cond
from onnx_cfad.graph.dims import with_axis

Finish = Callable[[Builder, list[Expr], list[Expr]], list[Expr]]
ZeroTrips = Callable[[Builder], list[Expr]]


@dataclasses.dataclass
class State:
    """A carry of the reverse loop: its start outside, its entry and result inside, and whether its shape is fixed."""

    start: Expr
    entry: Expr
    fixed: bool
    result: Expr | None = None


@dataclasses.dataclass(frozen=True)
class Sliced:
    """A tensor (or sequence) read one slice an iteration of the reverse loop, from its end when ``backwards``."""

    source: ir.Value
    axis: int
    backwards: bool
    sequence: bool = False


@dataclasses.dataclass(frozen=True)
class Stacked:
    """How a result is stacked: along ``axis``, each in front of the others when ``reverse``."""

    axis: int
    reverse: bool


class ReverseLoop:
    """A loop under construction. Fill it, close it to a body graph, resolve its residuals, then emit the loop.

    Args:
        builder: Records the body.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.states: list[State] = []
        self._results: list[Expr] = []
        self._stacked: list[Stacked] = []
        self._inputs: list[tuple[Sliced, ir.Value]] = []
        self._index: ir.Value | None = None
        self.constants: list[ir.Value] = []

    def state(
        self, hint: str, start: Expr, type_: ir.TypeProtocol | None, shape: ir.Shape | None, *, fixed: bool
    ) -> State:
        """Opens a carry that begins as ``start``; its result is set before the body is closed."""
        state = State(start, self.builder.input(hint, type_, shape), fixed)
        self.states.append(state)
        return state

    def input(self, sliced: Sliced, like: ir.Value) -> Expr:
        """A slice of ``sliced`` each iteration, typed like the body value that it stands for."""
        for known, value in self._inputs:
            if known == sliced:
                return self.builder.expr(value)
        entry = self.builder.input(f"read.{like.name}", like.type, like.shape)
        self.attach(sliced, entry.value)
        return entry

    def attach(self, sliced: Sliced, entry: ir.Value) -> None:
        """Makes ``entry``, which the body reads already, the slice of ``sliced``."""
        self._inputs.append((sliced, entry))

    def index(self, like: ir.Value) -> ir.Value:
        """The iteration number of the forward loop."""
        if self._index is None:
            self._index = self.builder.input(f"read.{like.name}", like.type, ir.Shape([])).value
        return self._index

    def output(self, result: Expr, axis: int, *, reverse: bool) -> int:
        """Stacks ``result`` of every iteration, once only; gives its position among the stacked results."""
        wanted = Stacked(axis, reverse)
        for position, (known, stacked) in enumerate(zip(self._results, self._stacked, strict=True)):
            if known.value is result.value and stacked == wanted:
                return position
        self._results.append(result)
        self._stacked.append(wanted)
        return len(self._results) - 1

    def close(self) -> ir.Graph:
        """The body graph; inputs are completed when the loop is emitted."""
        results: list[Expr] = []
        for state in self.states:
            assert state.result is not None
            results.append(state.result)
        return self.builder.graph([], [*results, *self._results], "reverse", body=True)

    def late_state(self, graph: ir.Graph, start: ir.Value, entry: ir.Value, result: ir.Value) -> None:
        """A carry added to the closed body, which reads ``entry`` already: it becomes ``result`` of each iteration."""
        self.states.append(State(self.builder.expr(start), self.builder.expr(entry), fixed=True))
        copy = Builder(self.builder.namer, self.builder.opset)
        graph.outputs.insert(len(self.states) - 1, copy.fresh_identity(result))
        graph.extend(copy.nodes)

    @property
    def entries(self) -> list[ir.Value]:
        """What the body reads anew each iteration: carries, slices and the iteration number."""
        found = [*(state.entry.value for state in self.states), *(entry for _, entry in self._inputs)]
        return found if self._index is None else [*found, self._index]

    def made(self) -> set[ir.Value]:
        """What the body makes or reads anew, before it is closed."""
        return {*(output for node in self.builder.nodes for output in node.outputs), *self.entries}

    @property
    def can_scan(self) -> bool:
        """Whether a Scan can carry the states opened so far."""
        return all(state.fixed and state.entry.is_tensor for state in self.states)

    def needs_guard(self, *, positive: bool) -> bool:
        """Whether an If has to leave the loop out where it would run zero times."""
        return not positive and (self._scans or bool(self._results))

    @property
    def _scans(self) -> bool:
        return self.can_scan and not any(sliced.sequence for sliced, _ in self._inputs)

    def emit(
        self,
        graph: ir.Graph,
        outer: Builder,
        trips: Expr,
        *,
        positive: bool,
        before: Sequence[ir.Node] = (),
        finish: Finish,
        none: ZeroTrips,
    ) -> list[Expr]:
        """Records the loop and what follows it.

        Args:
            graph: The closed body.
            outer: Records the loop itself.
            trips: How often it runs (int64 scalar).
            positive: It runs at least once.
            before: Nodes that the loop reads from, which run only where it does.
            finish: From a builder, the final carries and the stacked results to the results of the whole.
            none: The same results where the loop runs zero times.
        """
        if not self.states and not self._results:
            return finish(outer, [], [])
        for constant in self.constants:
            graph.initializers.add(constant)
        count, guarded = len(self._results), self.needs_guard(positive=positive)
        taped = self._leave_to_tapes(graph)

        def complete(builder: Builder, finals: list[Expr], stacked: list[Expr]) -> list[Expr]:
            found = iter(stacked)
            whole = [builder.expr(taped[k]) if k in taped else next(found) for k in range(count)]
            return finish(builder, finals, whole)

        run = self._emit_scan if self._scans else self._emit_loop
        if not guarded:
            return complete(outer, *run(graph, outer, trips))

        def some(builder: Builder) -> list[Expr]:
            builder.nodes.extend(before)
            return complete(builder, *run(graph, builder, builder.expr(trips.value)))

        return cond(op.Greater(trips, 0), some, none, name="any_trips")

    def _leave_to_tapes(self, graph: ir.Graph) -> dict[int, ir.Value]:
        """Takes out the stacked results that only copy a tape that is read backwards; gives the tapes by position."""
        rows = {entry: sliced.source for sliced, entry in self._inputs if sliced.backwards and not sliced.axis}
        found: dict[int, ir.Value] = {}
        for position in reversed(range(len(self._results))):
            copy = graph.outputs[len(self.states) + position].producer()
            source = copy.inputs[0] if copy is not None and copy.op_type == "Identity" else None
            if source in rows and self._stacked[position] == Stacked(0, reverse=True):
                graph.outputs.pop(len(self.states) + position)
                del self._results[position], self._stacked[position]
                found[position] = rows[source]
        return found

    def _emit_scan(self, graph: ir.Graph, outer: Builder, trips: Expr) -> tuple[list[Expr], list[Expr]]:
        read = [_scanned(outer.expr(sliced.source), sliced.axis) for sliced, _ in self._inputs]
        sources, axes = [source for source, _ in read], [axis for _, axis in read]
        entries = [entry for _, entry in self._inputs]
        directions = [int(s.backwards) for s, _ in self._inputs]
        if self._index is not None or not entries:
            index = self._index or self.builder.input("step", ir.TensorType(ir.DataType.INT64), ir.Shape([])).value
            zero, one = outer.constant(np.int64(0)), outer.constant(np.int64(1))
            sources.append(outer.call("Range", [zero, trips, one])[0])
            entries, axes, directions = [*entries, index], [*axes, 0], [*directions, 1]
        graph.inputs.extend([*(state.entry.value for state in self.states), *entries])
        laid = [
            Stacked(0, s.reverse) if _crashes(r, s) else s for r, s in zip(self._results, self._stacked, strict=True)
        ]
        outs = outer.call(
            "Scan",
            [*(outer.expr(state.start.value) for state in self.states), *sources],
            {
                "body": graph,
                "num_scan_inputs": len(sources),
                "scan_input_axes": axes if any(axes) else None,
                "scan_input_directions": directions if any(directions) else None,
                "scan_output_axes": [s.axis for s in laid] or None,
                "scan_output_directions": [int(s.reverse) for s in laid] or None,
            },
            types=[*(_type(s.entry) for s in self.states), *(_type(r) for r in self._results)],
            outputs=len(self.states) + len(self._results),
        )
        finals, stacked = self._split(outs, laid)
        wanted = [Stacked(s.axis if s.axis != o.axis else 0, False) for s, o in zip(self._stacked, laid, strict=True)]
        return finals, [_laid_out(x, info) for x, info in zip(stacked, wanted, strict=True)]

    def _emit_loop(self, graph: ir.Graph, outer: Builder, trips: Expr) -> tuple[list[Expr], list[Expr]]:
        last = trips - 1
        step = self.builder.input("step", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
        going = self.builder.input("going", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
        head = Builder(self.builder.namer, self.builder.opset)
        step, last = head.expr(step.value), head.expr(last.value)
        mirrored = op.Sub(last, step)
        if self._index is not None:
            ir.convenience.replace_all_uses_with(self._index, mirrored.value)
        for sliced, entry in self._inputs:
            position = mirrored if sliced.backwards else step
            source = head.expr(sliced.source)
            read = op.SequenceAt(source, position) if sliced.sequence else op.Gather(source, position, axis=sliced.axis)
            read.value.shape = entry.shape
            ir.convenience.replace_all_uses_with(entry, read.value)
        passed = head.fresh_identity(going.value)
        first = next(iter(graph))
        graph.insert_before(first, head.nodes)
        for initializer in head.initializers:
            graph.initializers.add(initializer)
        graph.inputs.extend([step.value, going.value, *(state.entry.value for state in self.states)])
        graph.outputs.insert(0, passed)
        outs = outer.call(
            "Loop",
            [trips, outer.constant(True), *(outer.expr(state.start.value) for state in self.states)],
            {"body": graph},
            types=[*(_type(s.entry) for s in self.states), *(_type(r) for r in self._results)],
            outputs=len(self.states) + len(self._results),
        )
        finals, stacked = self._split(outs, [Stacked(0, reverse=False)] * len(self._stacked))
        return finals, [_laid_out(x, info) for x, info in zip(stacked, self._stacked, strict=True)]

    def _split(self, outs: Sequence[Expr], laid: Sequence[Stacked]) -> tuple[list[Expr], list[Expr]]:
        finals, stacked = list(outs[: len(self.states)]), list(outs[len(self.states) :])
        for out, state in zip(finals, self.states, strict=True):
            if state.fixed and out.is_tensor:
                out.value.shape = state.entry.value.shape
        for out, result, info in zip(stacked, self._results, laid, strict=True):
            shape = result.value.shape
            out.value.shape = None if shape is None else with_axis(shape, info.axis, ir.SymbolicDim(None))
        return finals, stacked


def _type(x: Expr) -> ir.TypeProtocol:
    return x.type


def _crashes(row: Expr, info: Stacked) -> bool:
    """Whether a Scan cannot lay out the rows: ONNX Runtime 1.32 divides by zero for empty ones off the first axis."""
    return info.axis != 0 and may_be_empty(row.value.shape)


def may_be_empty(shape: ir.Shape | None) -> bool:
    """Whether a tensor of ``shape``, of known rank, might have no elements."""
    return shape is not None and not all(isinstance(d, int) and d > 0 for d in shape.dims)


def _scanned(source: Expr, axis: int) -> tuple[Expr, int]:
    """What a Scan reads slices along ``axis`` of: with that axis in front where the slices may be empty (as above)."""
    if axis == 0 or not may_be_empty(source.value.shape):
        return source, axis
    order = list(range(source.rank))
    return op.Transpose(source, perm=[order.pop(axis), *order]), 0


def _laid_out(x: Expr, info: Stacked) -> Expr:
    """A result that was stacked on axis 0 in the order it was made, as ``info`` asks for."""
    if info.reverse:
        shape = x.value.shape
        x = op.Slice(x, [-1], [-(2**62)], [0], [-1])
        x.value.shape = shape
    if info.axis:
        order = list(range(1, x.rank))
        order.insert(info.axis % x.rank, 0)
        x = op.Transpose(x, perm=order)
    return x
