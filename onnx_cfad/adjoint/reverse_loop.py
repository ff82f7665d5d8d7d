"""The loop that runs a region backwards: carries of cotangents, inputs read in reverse, stacked results.

It is a Scan, guarded by an If where it might run zero times (ONNX Runtime refuses a Scan of length zero), or a Loop
where a carry is a sequence or changes shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, cond, full, op
from onnx_cfad.errors import UnsupportedOp


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
    """A result stacked along ``axis``, each in front of the others when ``reverse``; shaped like ``like``."""

    axis: int
    reverse: bool
    like: ir.Value


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

    def output(self, result: Expr, axis: int, *, reverse: bool, like: ir.Value) -> None:
        """Stacks ``result`` of every iteration to a tensor shaped like ``like``."""
        self._results.append(result)
        self._stacked.append(Stacked(axis, reverse, like))

    def close(self) -> ir.Graph:
        """The body graph; inputs are completed when the loop is emitted."""
        results: list[Expr] = []
        for state in self.states:
            assert state.result is not None
            results.append(state.result)
        return self.builder.graph([], [*results, *self._results], "reverse")

    def emit(self, graph: ir.Graph, outer: Builder, trips: Expr, *, positive: bool) -> tuple[list[Expr], list[Expr]]:
        """Records the loop.

        Args:
            graph: The closed body.
            outer: Records the loop itself.
            trips: How often it runs (int64 scalar).
            positive: It runs at least once.

        Returns:
            The final carries, and the stacked results.
        """
        if not self.states and not self._results:
            return [], []
        if any(not s.fixed or not s.entry.is_tensor for s in self.states) or any(s.sequence for s, _ in self._inputs):
            return self._emit_loop(graph, outer, trips)
        if positive:
            return self._emit_scan(graph, outer, trips)
        return self._emit_guarded(graph, outer, trips)

    def _emit_scan(self, graph: ir.Graph, outer: Builder, trips: Expr) -> tuple[list[Expr], list[Expr]]:
        sources = [outer.expr(sliced.source) for sliced, _ in self._inputs]
        entries = [entry for _, entry in self._inputs]
        axes, directions = [s.axis for s, _ in self._inputs], [int(s.backwards) for s, _ in self._inputs]
        if self._index is not None or not entries:
            index = self._index or self.builder.input("step", ir.TensorType(ir.DataType.INT64), ir.Shape([])).value
            zero, one = outer.constant(np.int64(0)), outer.constant(np.int64(1))
            sources.append(outer.call("Range", [zero, trips, one])[0])
            entries, axes, directions = [*entries, index], [*axes, 0], [*directions, 1]
        graph.inputs.extend([*(state.entry.value for state in self.states), *entries])
        outs = outer.call(
            "Scan",
            [*(outer.expr(state.start.value) for state in self.states), *sources],
            {
                "body": graph,
                "num_scan_inputs": len(sources),
                "scan_input_axes": axes if any(axes) else None,
                "scan_input_directions": directions if any(directions) else None,
                "scan_output_axes": [s.axis for s in self._stacked] or None,
                "scan_output_directions": [int(s.reverse) for s in self._stacked] or None,
            },
            types=[*(_type(s.entry) for s in self.states), *(_type(r) for r in self._results)],
            outputs=len(self.states) + len(self._results),
        )
        return self._split(outs)

    def _emit_guarded(self, graph: ir.Graph, outer: Builder, trips: Expr) -> tuple[list[Expr], list[Expr]]:
        def some(builder: Builder) -> list[Expr]:
            finals, stacked = self._emit_scan(graph, builder, builder.expr(trips.value))
            return [*finals, *stacked]

        def none(builder: Builder) -> list[Expr]:
            empty = [full(builder.expr(s.like).shape, 0, _dtype(s.like), builder) for s in self._stacked]
            return [*(builder.expr(state.start.value) for state in self.states), *empty]

        return self._split(tuple(cond(op.Greater(trips, 0), some, none, name="any_trips")))

    def _emit_loop(self, graph: ir.Graph, outer: Builder, trips: Expr) -> tuple[list[Expr], list[Expr]]:
        if self._results:
            raise UnsupportedOp("Scan", "its reverse pass would carry a sequence or a value that changes shape")
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
            types=[_type(s.entry) for s in self.states],
            outputs=len(self.states),
        )
        return self._split(outs)

    def _split(self, outs: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        finals, stacked = list(outs[: len(self.states)]), list(outs[len(self.states) :])
        for out, state in zip(finals, self.states, strict=True):
            if state.fixed and out.is_tensor:
                out.value.shape = state.entry.value.shape
        for out, info in zip(stacked, self._stacked, strict=True):
            out.value.shape = info.like.shape
        return finals, stacked


def _type(x: Expr) -> ir.TypeProtocol:
    return x.type


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
