"""Weight gradients of a branch in a loop: the reversed If hands out factors, and the loop contracts them afterwards.

A branch that contributes ``transpose(P) @ Q`` to a captured matrix would hand out a whole matrix, the other branch as
many zeros, and the loop would add both to a running sum, every iteration. Instead P and Q are handed out where the
branch made them, and the product stands behind the If. Masked by the predicate it is exactly zero where the branch was
not taken; a loop that stacks the factors leaves those rows out (``captured.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.contraction import Product, Total, product_of, total_of
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder, Expr, op, where
from onnx_cfad.adjoint.zeros import zero_cotangent
from onnx_cfad.graph.regions import BranchSite

_SIXTEEN_BIT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass
class _Slot:
    """An output of the reversed If: what each side hands out, zeros where it has nothing to."""

    like: ir.Value
    sides: dict[int, ir.Value]


@dataclasses.dataclass(frozen=True)
class _Moved:
    """A contribution to ``value`` that is made behind the If, from what one side (both where None) hands out."""

    value: ir.Value
    side: int | None
    part: Product | Total


class BranchFactors:
    """Takes the products of captured matrices out of the cotangents of both branches.

    Args:
        site: The If.
        inners: The cotangents of its branches, then and else; products and sums that are handed out are removed.
        around: The cotangents of the enclosing region.
    """

    def __init__(self, site: BranchSite, inners: Sequence[Cotangents], around: Cotangents) -> None:
        self.site, self.inners, self.around = site, inners, around
        self.slots: list[_Slot] = []
        self._moved: list[_Moved] = []
        shape = site.predicate.shape
        if around.inside and shape is not None and shape.rank() == 0:
            for side in range(len(inners)):
                self._take_products(side)
            for side in range(len(inners)):
                self._take_totals(side)
            self._join_totals()

    def results(self, side: int) -> list[Expr]:
        """What one branch hands out, slot by slot."""
        builder = self.inners[side].builder
        found = [(slot, slot.sides.get(side)) for slot in self.slots]
        return [zero_cotangent(builder.expr(s.like)) if v is None else builder.expr(v) for s, v in found]

    def contribute(self, outs: Sequence[Expr]) -> None:
        """Adds the products of what the If handed out to the cotangents around it."""
        for out, slot in zip(outs, self.slots, strict=True):
            out.value.shape = slot.like.shape
        for moved in self._moved:
            self.around.add(moved.value, self._behind(moved, outs))

    def _take_products(self, side: int) -> None:
        inner = self.inners[side]
        for value in inner:
            if value.graph in inner.inside or value.dtype in _SIXTEEN_BIT:
                continue
            contributions = inner.contributions(value)
            for contribution in list(contributions):
                product = product_of(contribution) if isinstance(contribution, Expr) else None
                if product is not None and all(self._can_leave(x, inner) for x in (product.left, product.right)):
                    for factor in (product.left, product.right):
                        self._hand_out(factor, side)
                    contributions.remove(contribution)
                    self._moved.append(_Moved(value, side, product))
            inner.forget_empty(value)

    def _take_totals(self, side: int) -> None:
        """Sums over what is handed out anyway, such as the gradient of a bias."""
        inner = self.inners[side]
        for value in inner:
            if value.graph in inner.inside or value.dtype in _SIXTEEN_BIT:
                continue
            contributions = inner.contributions(value)
            for contribution in list(contributions):
                total = total_of(contribution) if isinstance(contribution, Expr) else None
                if total is not None and any(slot.sides.get(side) is total.operand for slot in self.slots):
                    contributions.remove(contribution)
                    self._moved.append(_Moved(value, side, total))
            inner.forget_empty(value)

    def _join_totals(self) -> None:
        """Equal sums of both sides over one slot are one sum, whichever side was taken."""
        totals = [m for m in self._moved if isinstance(m.part, Total) and m.side is not None]
        for one in totals:
            twin = next((m for m in totals if m.side != one.side and self._are_equal(one, m)), None)
            if twin is not None and one in self._moved and twin in self._moved:
                self._moved.remove(twin)
                self._moved[self._moved.index(one)] = _Moved(one.value, None, one.part)

    def _are_equal(self, one: _Moved, other: _Moved) -> bool:
        a, b = one.part, other.part
        if not (isinstance(a, Total) and isinstance(b, Total) and one.value is other.value):
            return False
        return (a.axes, a.keepdims) == (b.axes, b.keepdims) and self._slot_of(a.operand) == self._slot_of(b.operand)

    def _can_leave(self, factor: ir.Value, inner: Cotangents) -> bool:
        """Whether a factor changes from one iteration to the next and has a shape that the other side can give too."""
        if factor.shape is None or factor.shape.rank() != 2 or not factor.shape.is_static():
            return False
        return factor.graph in inner.inside or factor in inner.builder.made()

    def _hand_out(self, factor: ir.Value, side: int) -> None:
        if factor.graph in self.around.inside or any(slot.sides.get(side) is factor for slot in self.slots):
            return  # known behind the If
        alike = ((s.like.dtype, s.like.shape) == (factor.dtype, factor.shape) for s in self.slots)
        for slot, fits in zip(self.slots, alike, strict=True):
            if fits and side not in slot.sides:
                slot.sides[side] = factor
                return
        self.slots.append(_Slot(factor, {side: factor}))

    def _slot_of(self, factor: ir.Value) -> int | None:
        return next((k for k, slot in enumerate(self.slots) if factor in slot.sides.values()), None)

    def _behind(self, moved: _Moved, outs: Sequence[Expr]) -> Expr:
        builder, part = self.around.builder, moved.part
        if isinstance(part, Total):
            return op.ReduceSum(
                self._factor(builder, part.operand, moved.side, outs), list(part.axes), keepdims=int(part.keepdims)
            )
        left, right = (self._factor(builder, x, moved.side, outs) for x in (part.left, part.right))
        return op.Gemm(left, right, transB=1) if part.columns else op.Gemm(left, right, transA=1)

    def _factor(self, builder: Builder, factor: ir.Value, side: int | None, outs: Sequence[Expr]) -> Expr:
        """A factor behind the If: as it is where its branch was taken, zero where it was not."""
        slot = self._slot_of(factor)
        x = builder.expr(factor) if slot is None else outs[slot]
        if side is None:
            return x
        predicate = builder.expr(self.site.predicate)
        return where(predicate, x, 0) if side == 0 else _unless(predicate, x)


def _unless(predicate: Expr, x: Expr) -> Expr:
    zero = x.builder.constant(0, x.dtype)
    return op.Where(predicate, zero, x)
