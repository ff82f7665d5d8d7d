"""The tape of a loop: body values stacked by the forward pass, or kept in a sequence where their shape varies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.adjoint.extend import NewCarry, counting_carry, extend_loop, sequence_carry
from onnx_cfad.adjoint.packed import pack, unpack
from onnx_cfad.adjoint.residuals import Keeper
from onnx_cfad.adjoint.reverse_loop import ReverseLoop, Sliced
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.regions import LoopSite, handed_on, loop_site
from onnx_cfad.graph.trips import TripCount
from onnx_cfad.rewriters.scan_form import is_read_elsewhere, loop_to_scan


class LoopKeeper(Keeper):
    """Keeps body values for the reverse pass of a loop.

    The exit of a carry is the entry of the next iteration, so only entries are taped: the reverse loop, which visits
    the next iteration first, hands its entry on.

    Args:
        sweep: Analyses.
        site: The forward loop.
        outer: Records what surrounds the reverse loop.
        loop: The reverse loop.
        carries_only: Tape nothing but carries and recorded decisions; all else is computed again.
        narrow: Element type that wider floating-point values are taped in; None for their own.
    """

    repeats = True

    def __init__(
        self,
        sweep: Sweep,
        site: LoopSite,
        outer: Builder,
        loop: ReverseLoop,
        *,
        carries_only: bool = False,
        narrow: ir.DataType | None = None,
    ) -> None:
        self.sweep, self.site, self.outer, self.loop = sweep, site, outer, loop
        self.carries_only = carries_only
        self.narrow = narrow
        self._narrowed: dict[ir.Value, ir.Value] = {}
        self._read: dict[ir.Value, ir.Value] = {}
        self._stacked: dict[ir.Value, ir.Value] = {}
        self._sequences: dict[ir.Value, ir.Value] = {}
        self._lagged: dict[int, ir.Value] = {}
        self._true: ir.Value | None = None
        self._tapes: dict[ir.Value, ir.Value] = {}
        self._unpacked: dict[ir.Value, ir.Value] = {}
        self._head: list[ir.Node] = []

    def uniform(self, value: ir.Value) -> bool:
        """Whether all iterations give ``value`` one shape; what a Scan carries or slices always has one."""
        if self.site.is_scan and value.producer() is None:
            return True
        return self.sweep.types.is_uniform(value, self.site.body)

    def is_carry_entry(self, value: ir.Value) -> bool:
        """Whether ``value`` enters the body as a carry."""
        return any(carry.entry is value for carry in self.site.carries)

    def want_tape(self, value: ir.Value) -> None:
        """Asks for ``value`` to be stacked whether or not the reverse body reads it."""
        self._tape(value)

    def tape_of(self, value: ir.Value) -> ir.Value:
        """The stacked form of ``value`` ([trips, ...]), once the forward loop has been extended."""
        return self._tapes[self._narrowed.get(value, value)]

    def bound(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.bound``."""
        if value is self.site.index:
            return self.loop.index(value)
        if value is self.site.predicate:
            return self._always(value)
        for source in self.site.inputs:
            if value is source.slice:
                return self.loop.input(Sliced(source.source, source.axis, not source.reverse), value).value
        return self._from_outside(value)

    def _from_outside(self, value: ir.Value) -> ir.Value | None:
        """What a carry that every iteration hands on started from."""
        if not isinstance(value.type, ir.TensorType):
            return None
        return next((c.initial for c in self.site.carries if c.entry is value and handed_on(c)), None)

    def provides(self, value: ir.Value) -> bool:
        """See ``Keeper.provides``."""
        site = self.site
        there = value is site.index or value is site.predicate or any(value is source.slice for source in site.inputs)
        return there or self._from_outside(value) is not None

    def save(self, value: ir.Value, *, must: bool) -> ir.Value | None:
        """See ``Keeper.save``."""
        if must and isinstance(value.type, ir.SequenceType) and not self.site.is_scan:
            return self._packed(value)
        if not isinstance(value.type, ir.TensorType) or not (must or self._is_kept(value)):
            return None
        if self.uniform(value):
            position = next((k for k, carry in enumerate(self.site.carries) if carry.exit is value), None)
            lags = position is not None and self._stacked_already(value) is None
            if position is not None and lags and self.uniform(self.site.carries[position].entry):
                return self._lag(position)
            return self._tape(value)
        if must and not self.site.is_scan:
            return self._sequences.setdefault(value, self._reading(value))
        return None

    def head(self) -> list[ir.Node]:
        """See ``Keeper.head``."""
        return self._head

    def same_shape_outside(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.same_shape_outside``."""
        if not self.uniform(value):
            return None
        return next((c.initial for c in self.site.carries if value is c.entry or value is c.exit), None)

    def extend_forward(self, graph: ir.Graph, count: TripCount) -> Expr:
        """Has the forward loop save what was asked for; gives its trip count (int64 scalar).

        Args:
            graph: The closed reverse body.
            count: What is known of the trip count.
        """
        node, body, namer = self.site.node, self.site.body, self.outer.namer
        carries: list[NewCarry] = []
        if count.conditional and self.site.index is not None:
            carries.append(counting_carry(node, body, self.site.index, namer))
        carries += [sequence_carry(node, body, value, namer) for value in self._sequences]
        limit = self.site.limit
        recorded = self._recorded()
        wanted = list(dict.fromkeys([*self._stacked, *recorded]))
        there = {value: position for value in wanted if (position := self._stacked_already(value)) is not None}
        if wanted and not carries and count.positive and self._can_be_scan():
            node = loop_to_scan(self.site, count.static or 0, namer)
        certain = count.positive or self.site.is_scan or body in self.sweep.prepared.positive
        elements, trip_dim = [value for value in wanted if value not in there], self.sweep.types.trip_dims[body]
        extended = extend_loop(node, carries, elements, trip_dim, namer, certain=certain)
        now = loop_site(extended.node)
        self._tapes = dict(zip(elements, extended.stacked, strict=True))
        self._tapes.update({value: now.outputs[position].stacked for value, position in there.items()})
        if recorded:
            self.sweep.records.tapes[body] = {value: self._evened(value) for value in recorded}
        finals = list(extended.finals)
        counter = finals.pop(0) if count.conditional and self.site.index is not None else None
        if counter is not None:
            self.sweep.records.counters[body] = counter
        for value, read in self._stacked.items():
            self.loop.attach(Sliced(self._tapes[value], 0, True), read)
        for tape, read in zip(finals, self._sequences.values(), strict=True):
            self.loop.attach(Sliced(tape, 0, True, sequence=True), read)
        self._hand_on(graph, now)
        return self._trips(count, counter, limit)

    def _recorded(self) -> list[ir.Value]:
        """The decisions and draws to record because this loop will be run again, and what is kept for that."""
        prepared, body = self.sweep.prepared, self.site.body
        if body not in prepared.replayed:
            return []
        wanted = [*self.sweep.records.values_to_record(self.site), *prepared.kept.get(body, ())]
        return [value for value in dict.fromkeys(wanted) if value.graph is body and self.uniform(value)]

    def _evened(self, value: ir.Value) -> ir.Value:
        """The record of ``value`` padded to the full segment, so that all segments' records have one shape."""
        tape, length = self._tapes[value], self.sweep.prepared.lengths.get(self.site.body)
        node = tape.producer()
        if length is None or value.shape is None or node is None or node.graph is None:
            return tape
        pad, rank = Builder(self.outer.namer, self.outer.opset), value.shape.rank() + 1
        x = pad.expr(tape)
        whole_length = pad.constant([length]) if isinstance(length, int) else pad.expr(length).unsqueeze([0])
        short = op.Sub(whole_length, op.Shape(x, start=0, end=1))
        zeros = pad.constant(np.zeros(rank, dtype=np.int64))
        whole = op.Pad(x, concat([zeros, short, *([op.Slice(zeros, [1], [rank], [0])] if rank > 1 else [])]))
        dim = length if isinstance(length, int) else ir.SymbolicDim(f"{length.name}.dim")
        whole.value.shape = ir.Shape([dim, *value.shape.dims])
        node.graph.insert_after(node, pad.nodes)
        for initializer in pad.initializers:
            node.graph.initializers.add(initializer)
        return whole.value

    def _hand_on(self, graph: ir.Graph, now: LoopSite) -> None:
        """Carries the entry of each iteration to the one before it, whose exit it is."""
        for position, read in self._lagged.items():
            entry = self.site.carries[position].entry
            self.loop.late_state(graph, now.carries[position].final, read, self._read[entry])

    def _stacked_already(self, value: ir.Value) -> int | None:
        """The position of the loop's own stacked output that holds ``value``."""
        for position, output in enumerate(self.site.outputs):
            maker = output.element.producer()
            copied = maker is not None and maker.op_type == "Identity" and maker.inputs[0] is value
            if output.axis == 0 and not output.reverse and (output.element is value or copied):
                return position
        return None

    def _trips(self, count: TripCount, counter: ir.Value | None, limit: ir.Value | None) -> Expr:
        """The number of iterations that ran, as an int64 scalar; none ran where it is negative."""
        if counter is not None:
            return self.outer.expr(counter)
        if count.static is not None:
            return self.outer.constant(np.int64(count.static))
        if self.site.is_scan:
            first = self.site.inputs[0]
            return self.outer.expr(first.source).dim(first.axis).squeeze([0])
        if limit is None:
            raise UnsupportedOp("", "nothing ever ends the loop: it has no limit, and its condition is always true")
        return self.outer.expr(limit).reshape([])

    def _is_kept(self, value: ir.Value) -> bool:
        return (
            not self.carries_only or self.is_carry_entry(value) or value.dtype in (ir.DataType.BOOL, ir.DataType.INT64)
        )

    def _can_be_scan(self) -> bool:
        """Whether the forward loop may become a Scan, and keep every bit (see ``is_read_elsewhere``)."""
        keeps_shape = all(isinstance(c.entry.type, ir.TensorType) and self.uniform(c.entry) for c in self.site.carries)
        floats = [o.element for o in self.site.outputs if carries_derivative(o.element)]
        return not self.site.is_scan and keeps_shape and all(map(is_read_elsewhere, floats))

    def _tape(self, value: ir.Value) -> ir.Value:
        if value not in self._read:
            source = self._as_taped(value)
            self._stacked[source] = self._reading(source)
            self._read[value] = self._stacked[source]
            if source is not value:
                back = Builder(self.outer.namer, self.outer.opset)
                wide = back.expr(self._stacked[source]).cast(value.dtype or ir.DataType.FLOAT)
                wide.value.shape = value.shape
                self._head.extend(back.nodes)
                self._narrowed[value], self._read[value] = source, wide.value
        return self._read[value]

    def _as_taped(self, value: ir.Value) -> ir.Value:
        """``value`` in the narrow element type of the tape, where that saves bytes."""
        wider = self.narrow is not None and value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        if not wider or self._stacked_already(value) is not None or self.narrow is None:
            return value
        cast = Builder(self.outer.namer, self.outer.opset)
        narrow = cast.expr(value).cast(self.narrow)
        narrow.value.shape = value.shape
        cast.append_to(self.site.body)
        return narrow.value

    def _packed(self, value: ir.Value) -> ir.Value:
        """Keeps a sequence as tensors, which are as long in each iteration as the sequence is there."""
        if value not in self._unpacked:
            packing = Builder(self.outer.namer, self.outer.opset)
            tensors = [tensor.value for tensor in pack(packing.expr(value))]
            packing.append_to(self.site.body)
            unpacking = Builder(self.outer.namer, self.outer.opset)
            reads = [self._sequences.setdefault(tensor, self._reading(tensor)) for tensor in tensors]
            result = unpack([unpacking.expr(read) for read in reads], value)
            self.loop.constants.extend(unpacking.initializers)
            self._head.extend(unpacking.nodes)
            self._unpacked[value] = result.value
        return self._unpacked[value]

    def _lag(self, position: int) -> ir.Value:
        carry = self.site.carries[position]
        self._tape(carry.entry)
        if position not in self._lagged:
            self._lagged[position] = self._reading(carry.exit)
        return self._lagged[position]

    def _reading(self, value: ir.Value) -> ir.Value:
        shape = value.shape if self.uniform(value) or value.shape is None else ir.Shape([None] * value.shape.rank())
        return ir.Value(name=self.outer.namer.fresh(f"read.{value.name}"), type=value.type, shape=shape)

    def _always(self, value: ir.Value) -> ir.Value:
        """The condition of an iteration that ran."""
        if self._true is None:
            self._true = self.outer.constant(True).value
        del value
        return self._true
