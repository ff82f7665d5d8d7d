"""The reverse pass of one loop: from the sweep over its body to the cotangents of what enters the loop."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.captured import CapturedSums
from onnx_cfad.adjoint.contraction import OuterProduct, multiply_rows, outer_product_of
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, concat, op, zeros_like
from onnx_cfad.adjoint.invariants import hoist_invariants
from onnx_cfad.adjoint.residuals import resolve
from onnx_cfad.adjoint.reverse_loop import ReverseLoop, Sliced, State
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.adjoint.tape import LoopKeeper
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.graph.regions import Carry, loop_site
from onnx_cfad.graph.trips import trip_count


@dataclasses.dataclass(frozen=True)
class Row:
    """A slice ``Gather(source, i)`` of an outer tensor at the iteration number: a sliced input in disguise."""

    source: ir.Value
    slice: ir.Value
    axis: int
    backwards: bool = True


@dataclasses.dataclass(frozen=True)
class StackedSlice:
    """The cotangent of a sliced tensor: a stacked result, or the stacked factor of a product put off."""

    row: Row
    position: int
    product: OuterProduct | None

    def whole(self, builder: Builder, stacked: list[Expr]) -> Expr:
        """The cotangent of all slices, stacked."""
        result = stacked[self.position]
        return (
            result if self.product is None else multiply_rows(self.product, result, builder.expr(self.product.matrix))
        )


class Reversal:
    """Builds the reverse pass of the Loop or Scan ``node``.

    Args:
        sweep: Analyses.
        node: The loop.
        cotangents: Those of the enclosing region.
        carries_only: Keep nothing but carries and decisions (a checkpoint); compute all else again.
        narrow: Element type of the tape, where values are wider.
    """

    def __init__(
        self,
        sweep: Sweep,
        node: ir.Node,
        cotangents: Cotangents,
        *,
        carries_only: bool = False,
        narrow: ir.DataType | None = None,
    ) -> None:
        self.sweep = sweep
        self.site = loop_site(node)
        self.cotangents = cotangents
        self.outer = cotangents.builder
        self.trips = trip_count(self.site)
        self.loop = ReverseLoop(self.outer.child())
        self.keeper = LoopKeeper(sweep, self.site, self.outer, self.loop, carries_only=carries_only, narrow=narrow)

    def run(self) -> None:
        """Replaces the cotangents of the loop's outputs by those of its inputs and captured values."""
        seeds = {carry: self.cotangents.take(carry.final) for carry in self.site.carries}
        if self.trips.static == 0:
            self.pass_through(seeds)
            return
        rows = self.rows()
        inner = Cotangents(self.loop.builder, frozenset(row.slice for row in rows), self.stacking())
        carries = self.seed_carries(inner, seeds)
        self.seed_outputs(inner)
        self.sweep.run(self.site.body, inner, in_loop=True)
        self.close_carries(inner, carries)
        pending = self.slice_results(inner, rows)
        sums = CapturedSums(inner, self.site, self.loop, self.keeper)
        slices = [self.stack_slice(row, result, sums) for row, result in pending]
        graph = self.loop.close()
        resolve(graph, self.site.body, self.keeper, self.sweep.records, self.outer.namer)
        trips = self.keeper.extend_forward(graph, self.trips)
        positive = self.trips.positive or self.site.is_scan or self.site.body in self.sweep.prepared.positive
        guarded = self.loop.needs_guard(positive=positive)
        before = hoist_invariants(graph, self.outer, self.loop.entries, certain=positive, guarded=guarded)

        def finish(builder: Builder, finals: list[Expr], stacked: list[Expr]) -> list[Expr]:
            own = finals[: len(carries)]
            of_slices = [
                self.slice_cotangent(builder, entry.row, entry.whole(builder, stacked), trips) for entry in slices
            ]
            return [*own, *sums.totals(builder, finals[len(carries) :], stacked, trips), *of_slices]

        def none(builder: Builder) -> list[Expr]:
            own = [builder.expr(state.start.value) for state in self.loop.states[: len(carries)]]
            zeros = [zeros_like(builder.expr(entry.row.source)) for entry in slices]
            return [*own, *(zero_cotangent(builder.expr(value)) for value in sums.captured), *zeros]

        results = self.loop.emit(graph, self.outer, trips, positive=positive, before=before, finish=finish, none=none)
        targets = [*(carry.initial for carry in carries), *sums.captured, *(entry.row.source for entry in slices)]
        for value, result in zip(targets, results, strict=True):
            if result.is_tensor and result.value.shape is None and result.value.producer() is not None:
                result.value.shape = value.shape
            if self.sweep.activity.is_active(value):
                self.cotangents.add(value, result)

    def stacking(self) -> frozenset[ir.Graph]:
        """The body, where the reverse pass will be a Scan that can stack factors of products."""
        scans = all(isinstance(c.entry.type, ir.TensorType) and self.keeper.uniform(c.entry) for c in self.site.carries)
        return frozenset({self.site.body}) if scans else frozenset()

    def pass_through(self, seeds: dict[Carry, Expr | None]) -> None:
        """A loop that never runs hands its carries on and makes nothing else."""
        for output in self.site.outputs:
            self.cotangents.take(output.stacked)
        for carry, seed in seeds.items():
            if seed is not None and self.sweep.activity.is_active(carry.initial):
                self.cotangents.add(carry.initial, seed)

    def rows(self) -> list[Row]:
        """The reads of outer tensors at the iteration number: their cotangents are stacked, never scattered."""
        if not all(self.keeper.uniform(carry.entry) for carry in self.site.carries):
            return []
        found: list[Row] = []
        for node in self.site.body:
            source = node.inputs[0] if node.op_type == "Gather" else None
            if source is None or node.inputs[1] is not self.site.index or source.graph is self.site.body:
                continue
            if source.shape is not None and self.keeper.uniform(node.outputs[0]):
                axis = node.attributes.get_int("axis", 0) % source.shape.rank()
                found.append(Row(source, node.outputs[0], axis))
        return found if self.site.index is not None else []

    def seed_carries(self, inner: Cotangents, seeds: dict[Carry, Expr | None]) -> list[Carry]:
        """Opens a carry of the reverse loop for the cotangent of each active carry of the forward loop."""
        activity = self.sweep.activity
        carries: list[Carry] = []
        for carry, seed in seeds.items():
            if seed is None and not (activity.is_active(carry.entry) or activity.is_active(carry.exit)):
                continue
            uniform = self.keeper.uniform(carry.entry)
            start = zero_cotangent(self.outer.expr(carry.final)) if seed is None else seed
            shape = carry.entry.shape if uniform else unknown(carry.entry.shape)
            state = self.loop.state(f"ct.{carry.entry.name}", start, carry.entry.type, shape, fixed=uniform)
            inner.add(carry.exit, state.entry)
            carries.append(carry)
        return carries

    def seed_outputs(self, inner: Cotangents) -> None:
        """Reads the cotangents of stacked outputs slice by slice."""
        for output in self.site.outputs:
            seed = self.cotangents.take(output.stacked)
            if seed is not None:
                slice_ = self.loop.input(Sliced(seed.value, output.axis, not output.reverse), output.element)
                inner.add(output.element, slice_)

    def close_carries(self, inner: Cotangents, carries: list[Carry]) -> None:
        """What each carry's cotangent is one iteration earlier."""
        for state, carry in zip(self.loop.states, carries, strict=True):
            result = inner.take(carry.entry)
            state.result = self.zero_carry(state, carry) if result is None else self.sweep.clipping.carry(result)

    def zero_carry(self, state: State, carry: Carry) -> Expr:
        """A zero cotangent of a carry's entry."""
        return zeros_like(state.entry) if state.fixed else zero_cotangent(self.loop.builder.expr(carry.entry))

    def slice_results(self, inner: Cotangents, rows: list[Row]) -> list[tuple[Row, Expr]]:
        """The cotangents of the slices that an iteration read."""
        inputs = [Row(x.source, x.slice, x.axis, not x.reverse) for x in self.site.inputs]
        found = [(row, inner.take(row.slice)) for row in (*inputs, *rows)]
        return [(row, result) for row, result in found if result is not None]

    def stack_slice(self, row: Row, result: Expr, sums: CapturedSums) -> StackedSlice:
        """Stacks a slice's cotangent where the slice was read, or puts off the product that makes it.

        A product of a factor that is stacked anyway with a captured matrix is one product after the loop.
        """
        product = outer_product_of(result) if row.axis == 0 and row.backwards else None
        if product is not None and product.matrix.graph is not self.site.body:
            position = sums.stacked_factor(product.factor)
            if position is not None and product.matrix not in self.loop.made():
                return StackedSlice(row, position, product)
        return StackedSlice(row, self.loop.output(result, row.axis, reverse=row.backwards), None)

    def slice_cotangent(self, builder: Builder, row: Row, stacked: Expr, trips: Expr) -> Expr:
        """The stacked cotangents as the cotangent of the whole: zero behind the rows that were read."""
        dim = row.source.shape[row.axis] if row.source.shape is not None else None
        if self.site.is_scan or (isinstance(dim, int) and dim == self.trips.static):
            return stacked
        source = builder.expr(row.source)
        rest = op.Sub(source.dim(row.axis), builder.expr(trips.value).unsqueeze([0]))
        before, behind = [0] * (source.rank + row.axis), [0] * (source.rank - row.axis - 1)
        zeros = [builder.constant(x, ir.DataType.INT64) for x in (before, behind)]
        return op.Pad(stacked, concat([zeros[0], rest, zeros[1]]))


def unknown(shape: ir.Shape | None) -> ir.Shape | None:
    """A shape of the same rank without dimensions."""
    return None if shape is None else ir.Shape([None] * shape.rank())
