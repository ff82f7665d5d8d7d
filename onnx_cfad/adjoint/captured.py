"""The cotangents of captured values: a running sum, or one contraction of stacked factors after the loop."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeVar

import onnx_ir as ir

from onnx_cfad.adjoint.contraction import (
    Mask,
    Product,
    Total,
    contract,
    plus_product,
    product_of,
    size_of_result,
    total,
    total_of,
    unmasked,
)
from onnx_cfad.adjoint.cotangents import Cotangents, summed
from onnx_cfad.adjoint.expr import Builder, Expr, Update, full, op
from onnx_cfad.adjoint.reverse_loop import ReverseLoop
from onnx_cfad.adjoint.tape import LoopKeeper
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.graph.regions import LoopSite
from onnx_cfad.graph.trips import trip_count

_Part = TypeVar("_Part", Product, Total)

_MANY = 1 << 14  # numbers in the factors of one iteration: below, a node costs more than what it moves
_PER_RESULT = 4  # times those of their product: above, the product is dear enough to be done at once
_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass
class _Sum:
    """How one captured value's cotangent comes about: a carried running sum and deferred contributions."""

    value: ir.Value
    state: int | None
    deferred: list[Product | Total]


class CapturedSums:
    """Decides for each captured value how its cotangent is summed over the iterations.

    Reads the contributions off ``inner``; opens carries and stacked results of ``loop``; 16-bit types sum in float32.
    """

    def __init__(self, inner: Cotangents, site: LoopSite, loop: ReverseLoop, keeper: LoopKeeper) -> None:
        self.site, self.loop, self.keeper = site, loop, keeper
        self.captured = [value for value in inner if value.graph is not site.body]
        self._stacks: dict[ir.Value, int] = {}
        self._sums: list[_Sum] = []
        self._states = 0
        self._inside = loop.made()
        products = {value: self._deferred_products(inner, value) for value in self.captured}
        for value in self.captured:
            self._sums.append(self._sum(inner, value, products[value]))

    def stacked_factor(self, value: ir.Value) -> int | None:
        """The position among the stacked results of ``value``, where a contraction has it stacked."""
        return self._stacks.get(value)

    def totals(self, builder: Builder, finals: list[Expr], stacked: list[Expr], trips: Expr) -> list[Expr]:
        """The cotangents of ``captured``, recorded with ``builder``, from the results of the reverse loop.

        ``trips`` is how often the forward loop ran.
        """
        return [self._total(builder, entry, finals, stacked, trips) for entry in self._sums]

    def _deferred_products(self, inner: Cotangents, value: ir.Value) -> list[Product | Total]:
        if not self._may_defer(value):
            return []
        contributions = inner.contributions(value)
        found: list[Product | Total] = []
        for contribution in list(contributions):
            product = product_of(contribution) if isinstance(contribution, Expr) else None
            product = None if product is None else self._masked(product)
            if product is not None and self._is_worth(product):
                for factor in (product.left, product.right):
                    self._stack(factor)
                contributions.remove(contribution)
                found.append(product)
        return found

    def _sum(self, inner: Cotangents, value: ir.Value, deferred: list[Product | Total]) -> _Sum:
        contributions = inner.contributions(value)
        for contribution in list(contributions) if self._may_defer(value) else ():
            found = total_of(contribution) if isinstance(contribution, Expr) else None
            found = None if found is None else self._masked(found)
            if found is not None and found.operand in self._stacks:
                contributions.remove(contribution)
                deferred.append(found)
        state = self._running_sum(inner, value, contributions) if contributions or not deferred else None
        return _Sum(value, state, deferred)

    def _masked(self, part: _Part) -> _Part:
        """``part`` under a mask that the forward pass can tape, where it is zero in the other iterations."""
        found = unmasked(part)
        mask = found.mask
        if mask is None or mask.predicate.graph is not self.site.body or self.keeper.provides(mask.predicate):
            return part
        self.keeper.want_tape(mask.predicate)
        return found

    def _running_sum(self, inner: Cotangents, value: ir.Value, contributions: list[Expr | Update]) -> int:
        primal = self.keeper.outer.expr(value)
        if primal.is_tensor:
            dtype = ir.DataType.FLOAT if primal.dtype in _SIXTEEN_BIT else primal.dtype
            start = full(primal.shape, 0, dtype, self.keeper.outer)
            type_: ir.TypeProtocol = ir.TensorType(dtype)
        else:
            start, type_ = zero_cotangent(primal), primal.type
        state = self.loop.state(f"ct.{value.name}", start, type_, value.shape, fixed=value.shape is not None)
        entry = state.entry
        for contribution in list(contributions):
            total = plus_product(entry, contribution) if isinstance(contribution, Expr) else None
            if total is not None:
                contributions.remove(contribution)
                entry = total
        state.result = inner.take(value, entry)
        self._states += 1
        return self._states - 1

    def _may_defer(self, value: ir.Value) -> bool:
        return self.loop.can_scan and isinstance(value.type, ir.TensorType) and value.dtype not in _SIXTEEN_BIT

    def _is_worth(self, product: Product) -> bool:
        """Whether the factors can be stacked, and should: a running sum is better where they are many numbers.

        A stack is written, read and multiplied once, a running sum read and written in each iteration. In a loop over
        segments it takes three of its matrix (the carry of a Scan has two buffers and a start).
        """
        if not (self._stackable(product.left) and self._stackable(product.right)):
            return False
        shapes = [v.shape for v in (product.left, product.right)]
        sizes = [math.prod(shape.numpy()) for shape in shapes if shape is not None and shape.is_static()]
        result = size_of_result(product) if len(sizes) == len(shapes) else None
        if not self.keeper.carries_only:
            return result is None or sum(sizes) <= max(_MANY, _PER_RESULT * result)
        trips = trip_count(self.site).static
        return trips is not None and result is not None and trips * sum(sizes) <= 3 * result

    def _stackable(self, value: ir.Value) -> bool:
        if value.shape is None:
            return False
        if value.graph is self.site.body:
            return self.keeper.uniform(value)
        return value in self._inside and self.keeper.sweep.types.is_uniform_shape(value.shape, self.site.body)

    def _stack(self, value: ir.Value) -> None:
        """Has the loop stack ``value``, unless the tape or a sliced input holds it already."""
        if value in self._stacks or self._read_directly(value) is not None:
            return
        if self.keeper.is_carry_entry(value):
            self.keeper.want_tape(value)
            return
        self._stacks[value] = self.loop.output(self.loop.builder.expr(value), 0, reverse=True)

    def _read_directly(self, value: ir.Value) -> ir.Value | None:
        """The tensor whose first slices ``value`` is, in iteration order."""
        for source in self.site.inputs:
            if source.slice is value and source.axis == 0 and not source.reverse:
                return source.source
        return _source_of_row(value, self.site)

    def _stacked_form(self, builder: Builder, value: ir.Value, stacked: list[Expr], trips: Expr) -> Expr:
        row = _source_of_row(value, self.site)
        if row is not None:
            return _first_rows(builder.expr(row), builder.expr(trips.value), trip_count(self.site).static)
        direct = self._read_directly(value)
        if direct is None and value not in self._stacks:
            direct = self.keeper.tape_of(value)
        if direct is None:
            return stacked[self._stacks[value]]
        whole = builder.expr(direct)
        return whole.cast(value.dtype) if value.dtype is not None else whole

    def _counted(self, stack: Expr, mask: Mask | None) -> Expr:
        """The rows of ``stack`` from the iterations that count."""
        if mask is None:
            return stack
        record = stack.builder.expr(self.keeper.tape_of(mask.predicate))
        rows = op.Compress(stack, record if mask.holds else op.Not(record), axis=0)
        rows.value.shape = None if stack.value.shape is None else ir.Shape([None, *stack.value.shape.dims[1:]])
        return rows

    def _total(self, builder: Builder, entry: _Sum, finals: list[Expr], stacked: list[Expr], trips: Expr) -> Expr:
        result = finals[entry.state] if entry.state is not None else None
        terms: list[Expr] = []
        for part in entry.deferred:
            if isinstance(part, Product):
                left, right = (
                    self._counted(self._stacked_form(builder, v, stacked, trips), part.mask)
                    for v in (part.left, part.right)
                )
                static = None if part.mask is not None else trip_count(self.site).static
                result = contract(part, left, right, static, result)
            else:
                terms.append(total(part, self._counted(stacked[self._stacks[part.operand]], part.mask)))
        result = summed([*([] if result is None else [result]), *terms])
        return result.cast(entry.value.dtype) if result.is_tensor and entry.value.dtype is not None else result


def _source_of_row(value: ir.Value, site: LoopSite) -> ir.Value | None:
    """The outer tensor that ``value`` is the row of which the iteration has the number."""
    node = value.producer()
    if node is None or node.op_type != "Gather" or node.attributes.get_int("axis", 0):
        return None
    source, index = node.inputs
    if source is None or source.graph is site.body or site.index is None or index is not site.index:
        return None
    ranks = [None if v.shape is None else v.shape.rank() for v in (source, value)]
    return source if None not in ranks and ranks[0] == (ranks[1] or 0) + 1 else None


def _first_rows(source: Expr, trips: Expr, static: int | None) -> Expr:
    """The rows that an iteration each has read."""
    if static is not None and source.dims[0] == static:
        return source
    rows = op.Slice(source, [0], trips.unsqueeze([0]), [0])
    rows.value.shape = ir.Shape([static, *source.dims[1:]])
    return rows
