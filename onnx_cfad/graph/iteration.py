"""Integers of a loop body that are linear in the iteration number, however an exporter wrote them."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.regions import Carry, LoopSite

_COUNTING = frozenset((ir.DataType.INT32, ir.DataType.INT64))
_SAME = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Concat"))
_LARGEST = 2**31  # above, a product might overflow in the model and not here
_DEPTH = 48  # operators between an index and what it is made of

Leaf = ir.Value | tuple[ir.Value, int]
"""An integer that is not looked into; or a dimension of a tensor, by its axis."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """``number`` plus multiples of leaves."""

    number: int
    terms: tuple[tuple[Leaf, int], ...] = ()

    def __add__(self, other: Linear) -> Linear:
        factors = dict(self.terms)
        for leaf, factor in other.terms:
            factors[leaf] = factors.get(leaf, 0) + factor
        return Linear(self.number + other.number, tuple((x, k) for x, k in factors.items() if k))

    def __sub__(self, other: Linear) -> Linear:
        return self + other.times(-1)

    def plus(self, number: int) -> Linear:
        """The sum with a number."""
        return Linear(self.number + number, self.terms)

    def times(self, factor: int) -> Linear:
        """The product with a number."""
        return Linear(factor * self.number, tuple((x, factor * k) for x, k in self.terms) if factor else ())

    @property
    def constant(self) -> int | None:
        """The number that it is; None where the run decides."""
        return None if self.terms else self.number

    def is_at_least(self, bound: int) -> bool:
        """Whether it is certainly not below ``bound``: dimensions are not negative."""
        return self.number >= bound and all(isinstance(leaf, tuple) and factor > 0 for leaf, factor in self.terms)


@dataclasses.dataclass(frozen=True)
class Index:
    """``step * i + first`` in iteration i; what ``first`` is made of is known in front of the loop."""

    step: int
    first: Linear


class Indices:
    """The integers of one Loop body that are linear in its iteration number; shapes have been inferred.

    A carry counts too that grows by a constant, as in ``while i < n: ...; i += 1``.
    """

    def __init__(self, site: LoopSite) -> None:
        self._site = site
        self._known: dict[ir.Value, Linear | None] = {}
        self._carries: dict[Leaf, Carry] = {carry.entry: carry for carry in site.carries}
        self.trips = None if site.limit is None else self._linear(site.limit, _DEPTH)
        """How often the loop runs at most; None without a limit."""

    def of(self, value: ir.Value) -> Index | None:
        """``value``, one integer, by the iteration number; None where it is not known to be linear in it."""
        linear = self._linear(value, _DEPTH)
        if linear is None or linear.constant is not None:
            return None
        step, first = 0, Linear(linear.number)
        for leaf, factor in linear.terms:
            if leaf is self._site.index:
                step += factor
            elif leaf in self._carries:
                counter = self._counter(leaf)
                if counter is None:
                    return None
                step, first = step + factor * counter.step, first + counter.first.times(factor)
            else:
                first += Linear(0, ((leaf, factor),))
        sensible = max(abs(step), abs(first.number)) <= _LARGEST
        return Index(step, first) if step and sensible else None

    def _counter(self, entry: Leaf) -> Index | None:
        """A carry that grows by a constant."""
        carry = self._carries[entry]
        first, last = self._linear(carry.initial, _DEPTH), self._linear(carry.exit, _DEPTH)
        if first is None or last is None or last.terms != ((entry, 1),):
            return None
        return Index(last.number, first)

    def _linear(self, value: ir.Value, depth: int) -> Linear | None:
        if value not in self._known:
            found = self._found(value, depth)
            self._known[value] = found if found is not None and abs(found.number) <= _LARGEST else None
        return self._known[value]

    def _found(self, value: ir.Value, depth: int) -> Linear | None:
        number, node = _number(value), value.producer()
        if number is not None or value.dtype not in _COUNTING:
            return None if number is None else Linear(number)
        if node is not None and node.domain in ("", "ai.onnx") and depth:
            found = self._computed(node, depth - 1)
            if found is not None:
                return found
        entering = value.graph is not self._site.body or value in self._site.body.inputs
        return Linear(0, ((value, 1),)) if entering else None

    def _computed(self, node: ir.Node, depth: int) -> Linear | None:
        """The result of a node that computes with single integers."""
        operands = [v for v in node.inputs if v is not None]
        if node.op_type in ("Gather", "Slice", "Shape"):
            return self._dimension(node)
        if node.op_type in _SAME and not (node.op_type == "Concat" and len(operands) > 1):
            return self._linear(operands[0], depth)
        if node.op_type not in ("Add", "Sub", "Mul", "Neg"):
            return None
        parts = [self._linear(operand, depth) for operand in operands]
        first, last = parts[0], parts[-1]
        if first is None or last is None:
            return None
        if node.op_type == "Mul":
            return _product(first, last)
        return {"Add": first + last, "Sub": first - last, "Neg": first.times(-1)}[node.op_type]

    def _dimension(self, node: ir.Node) -> Linear | None:
        """A dimension of a tensor, taken from its Shape."""
        shape, axis = node, 0
        if node.op_type != "Shape":
            whole, place = node.inputs[:2]
            producer = None if whole is None else whole.producer()
            picked = None if place is None else _number(place)
            if picked is None or producer is None or producer.op_type != "Shape":
                return None
            shape, axis = producer, picked
        tensor = shape.inputs[0]
        if tensor is None or tensor.shape is None:
            return None
        axes = list(range(tensor.shape.rank()))[slice(*shape_bounds(shape))]
        if not -len(axes) <= axis < len(axes) or (node is shape and len(axes) != 1):
            return None
        dim = tensor.shape[axes[axis]]
        if isinstance(dim, int):
            return Linear(dim)
        return None if tensor.graph is self._site.body else Linear(0, (((tensor, axes[axis]), 1),))


def shape_bounds(node: ir.Node) -> tuple[int, int | None]:
    """The axes that a Shape node gives the dimensions of: from the first to before the second."""
    end = node.attributes.get("end")
    return node.attributes.get_int("start", 0), None if end is None else end.as_int()


def dimension(tensor: ir.Value, axis: int) -> Linear:
    """A dimension of a tensor of known rank."""
    dim = None if tensor.shape is None else tensor.shape[axis]
    return Linear(dim) if isinstance(dim, int) else Linear(0, (((tensor, axis), 1),))


def _product(a: Linear, b: Linear) -> Linear | None:
    for one, other in ((a, b), (b, a)):
        if one.constant is not None:
            return other.times(one.constant)
    return None


def _number(value: ir.Value) -> int | None:
    """A constant of one integer."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _COUNTING or tensor.size != 1:
        return None
    return int(tensor.numpy().reshape(()))
