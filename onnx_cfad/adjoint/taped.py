"""A loop run backwards over a full tape: every residual of every iteration is kept.

Other names: store-all, naive reverse accumulation. Memory O(N * |residuals|) for N trips, time one forward and one
reverse pass. Loop and Scan are one mechanism: the reverse pass is a Scan over the reversed tape (ONNX Runtime reads a
Scan input without copying it), or a Loop where a carry is a sequence or changes shape, which no Scan can carry.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, full, op, zeros_like
from onnx_cfad.adjoint.extend import NewCarry, counting_carry, extend_loop, sequence_carry
from onnx_cfad.adjoint.residuals import Keeper, resolve
from onnx_cfad.adjoint.reverse_loop import ReverseLoop, Sliced, State
from onnx_cfad.adjoint.sweep import Sweep, active_captures
from onnx_cfad.graph.regions import Carry, LoopSite, loop_site
from onnx_cfad.graph.trips import TripCount, trip_count

_ACCUMULATES_IN_FLOAT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True)
class Taped(Adjoint):
    """Full tape: values of every iteration are stacked by the forward pass and read back in reverse order."""

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        del in_loop
        _Reversal(sweep, loop_site(node), cotangents).run()


class _Reversal:
    """The reverse pass of one loop, from the sweep over its body to the cotangents of what enters it."""

    def __init__(self, sweep: Sweep, site: LoopSite, cotangents: Cotangents) -> None:
        self.sweep = sweep
        self.site = site
        self.cotangents = cotangents
        self.outer = cotangents.builder
        self.trips = trip_count(site)
        self.loop = ReverseLoop(self.outer.child())

    def run(self) -> None:
        inner = Cotangents(self.loop.builder)
        carries = self.seed_carries(inner)
        self.seed_outputs(inner)
        self.sweep.run(self.site.body, inner, in_loop=True)
        self.close_carries(inner, carries)
        slices = self.close_inputs(inner)
        captured = self.close_captured(inner)
        graph = self.loop.close()
        keeper = _LoopKeeper(self, graph)
        resolve(graph, self.site.body, keeper, self.sweep.counters, self.outer.namer)
        trips = keeper.extend_forward()
        finals, stacked = self.loop.emit(graph, self.outer, trips, positive=self.trips.positive or self.site.is_scan)
        for carry, final in zip(carries, finals, strict=False):
            if self.sweep.activity.is_active(carry.initial):
                self.cotangents.add(carry.initial, final)
        for value, final in zip(captured, finals[len(carries) :], strict=True):
            self.cotangents.add(value, final.cast(_dtype(value)) if final.is_tensor else final)
        for source, result in zip(slices, stacked, strict=True):
            self.cotangents.add(source, result)

    def uniform(self, value: ir.Value) -> bool:
        """Whether all iterations give ``value`` one shape; what a Scan carries or slices always has one."""
        if self.site.is_scan and value.producer() is None:
            return True
        return self.sweep.types.is_uniform(value, self.site.body)

    def seed_carries(self, inner: Cotangents) -> list[Carry]:
        """Opens a carry of the reverse loop for the cotangent of each active carry of the forward loop."""
        activity = self.sweep.activity
        carries: list[Carry] = []
        for carry in self.site.carries:
            seed = self.cotangents.take(carry.final)
            if seed is None and not (activity.is_active(carry.entry) or activity.is_active(carry.exit)):
                continue
            uniform = self.uniform(carry.entry)
            start = _zeros(self.outer.expr(carry.final)) if seed is None else seed
            shape = carry.entry.shape if uniform else _unknown(carry.entry.shape)
            state = self.loop.state(f"ct.{carry.entry.name}", start, carry.entry.type, shape, fixed=uniform)
            inner.add(carry.exit, state.entry)
            carries.append(carry)
        return carries

    def seed_outputs(self, inner: Cotangents) -> None:
        for output in self.site.outputs:
            seed = self.cotangents.take(output.stacked)
            if seed is not None:
                slice_ = self.loop.input(Sliced(seed.value, output.axis, not output.reverse), output.element)
                inner.add(output.element, slice_)

    def close_carries(self, inner: Cotangents, carries: list[Carry]) -> None:
        for state, carry in zip(self.loop.states, carries, strict=True):
            result = inner.take(carry.entry)
            state.result = result if result is not None else self.zero_carry(state, carry)

    def zero_carry(self, state: State, carry: Carry) -> Expr:
        return zeros_like(state.entry) if state.fixed else _zeros(self.loop.builder.expr(carry.entry))

    def close_inputs(self, inner: Cotangents) -> list[ir.Value]:
        """Stacks the cotangents of the slices where the slices were read; gives the sliced tensors."""
        sources: list[ir.Value] = []
        for source in self.site.inputs:
            result = inner.take(source.slice)
            if result is not None:
                self.loop.output(result, source.axis, reverse=not source.reverse, like=source.source)
                sources.append(source.source)
        return sources

    def close_captured(self, inner: Cotangents) -> list[ir.Value]:
        """Carries a running sum for the cotangent of each captured value; 16-bit types sum in float32."""
        own = [v for v in inner if v.graph is self.site.body]
        captured = active_captures(inner, own)
        for value in captured:
            primal = self.outer.expr(value)
            if primal.is_tensor:
                dtype = ir.DataType.FLOAT if _dtype(value) in _ACCUMULATES_IN_FLOAT else _dtype(value)
                start, type_ = full(primal.shape, 0, dtype, self.outer), ir.TensorType(dtype)
            else:
                start, type_ = _zeros(primal), primal.type
            state = self.loop.state(f"ct.{value.name}", start, type_, value.shape, fixed=True)
            state.result = inner.take(value, state.entry)
        return captured


class _LoopKeeper(Keeper):
    """Keeps body values by stacking them, or in a sequence where their shape varies."""

    def __init__(self, reversal: _Reversal, graph: ir.Graph) -> None:
        self.reversal = reversal
        self.site = reversal.site
        self.graph = graph
        self.stacked: dict[ir.Value, ir.Value] = {}
        self.sequences: dict[ir.Value, ir.Value] = {}
        self.constants: dict[ir.Value, ir.Value] = {}

    def bound(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.bound``."""
        if value is self.site.index:
            return self.reversal.loop.index(value)
        if value is self.site.predicate:
            return self.always(value)
        for source in self.site.inputs:
            if value is source.slice:
                return self.reversal.loop.input(Sliced(source.source, source.axis, not source.reverse), value).value
        return None

    def save(self, value: ir.Value, *, must: bool) -> ir.Value | None:
        """See ``Keeper.save``."""
        namer = self.reversal.outer.namer
        if isinstance(value.type, ir.TensorType) and self.reversal.uniform(value):
            copy = ir.Value(name=namer.fresh(f"read.{value.name}"), type=value.type, shape=value.shape)
            return self.stacked.setdefault(value, copy)
        if must and isinstance(value.type, ir.TensorType) and not self.site.is_scan:
            copy = ir.Value(name=namer.fresh(f"read.{value.name}"), type=value.type, shape=_unknown(value.shape))
            return self.sequences.setdefault(value, copy)
        return None

    def same_shape_outside(self, value: ir.Value) -> ir.Value | None:
        """See ``Keeper.same_shape_outside``."""
        if not self.reversal.uniform(value):
            return None
        return next((c.initial for c in self.site.carries if value is c.entry or value is c.exit), None)

    def always(self, value: ir.Value) -> ir.Value:
        """The condition of an iteration that ran."""
        if value not in self.constants:
            namer = self.reversal.outer.namer
            tensor = ir.Tensor(np.asarray(True))
            constant = ir.Value(
                name=namer.fresh("const"), type=value.type, shape=ir.Shape([]), const_value=tensor
            )
            self.graph.initializers.add(constant)
            self.constants[value] = constant
        return self.constants[value]

    def extend_forward(self) -> Expr:
        """Has the forward loop save what was asked for; gives its trip count (int64 scalar)."""
        outer, body, namer = self.reversal.outer, self.site.body, self.reversal.outer.namer
        carries: list[NewCarry] = []
        counted = self.reversal.trips.conditional
        if counted and self.site.index is not None:
            carries.append(counting_carry(self.site.node, body, self.site.index, namer))
        carries += [sequence_carry(self.site.node, body, value, namer) for value in self.sequences]
        trip_dim = self.reversal.sweep.types.trip_dims[body]
        finals, tapes = extend_loop(self.site.node, carries, list(self.stacked), trip_dim, namer)
        counter = finals[0] if counted else None
        if counter is not None:
            self.reversal.sweep.counters[body] = counter
        for tape, read in zip(tapes, self.stacked.values(), strict=True):
            self.reversal.loop.attach(Sliced(tape, 0, True), read)
        for tape, read in zip(finals[1 if counted else 0 :], self.sequences.values(), strict=True):
            self.reversal.loop.attach(Sliced(tape, 0, True, sequence=True), read)
        return trips_of(self.site, self.reversal.trips, outer, counter)


def trips_of(site: LoopSite, count: TripCount, builder: Builder, counter: ir.Value | None) -> Expr:
    """The number of iterations that ran, as an int64 scalar."""
    if counter is not None:
        return builder.expr(counter)
    if count.static is not None:
        return builder.constant(np.int64(count.static))
    if site.is_scan:
        first = site.inputs[0]
        return builder.expr(first.source).dim(first.axis).squeeze([0])
    assert site.limit is not None
    return op.Max(builder.expr(site.limit).reshape([]), 0)


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _zeros(primal: Expr) -> Expr:
    """A zero cotangent for a tensor or a sequence."""
    if primal.is_tensor:
        return zeros_like(primal)
    from onnx_cfad.rules.sequences import zeros_like_sequence  # noqa: PLC0415 - rules are built on expressions

    return zeros_like_sequence(primal)


def _unknown(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape([None] * shape.rank())
