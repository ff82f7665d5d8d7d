"""Norms of a change: whether a number measures how much the carries of a loop moved in one iteration.

The change of a carry is recognised in three forms: its exit minus its entry; one more iteration minus its exit; and
the update that the exit adds to the entry, or a factor of that update (a gradient, the residual that Newton's method
divides). A norm is any nest of absolute values, squares, sums, means, maxima and roots of it that no cancellation can
make small, divided or scaled by anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import subgraphs_of

_SHAPING = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose"))
_REDUCTIONS = {
    "ReduceMax": "max", "ReduceSum": "sum", "ReduceMean": "mean", "ReduceL1": "L1", "ReduceL2": "L2",
    "ReduceSumSquare": "sum of squares",
}  # fmt: skip
_EVEN = frozenset(("ReduceL1", "ReduceL2", "ReduceSumSquare"))


@dataclasses.dataclass(frozen=True)
class Norm:
    """A measure of change.

    Attributes:
        carries: Positions of the carries whose change it measures.
        even: The sign of the change plays no part.
        words: What it is made of, outermost first.
        relative: It is divided by something.
    """

    carries: frozenset[int]
    even: bool
    words: tuple[str, ...] = ()
    relative: bool = False

    def __str__(self) -> str:
        words = set(self.words)
        if "L2" in words or ({"root", "square"} <= words and ("sum" in words or "sum of squares" in words)):
            name = "L2 norm"
        elif {"mean", "square"} <= words:
            name = "root mean square" if "root" in words else "mean square"
        elif words & {"sum of squares"} or {"sum", "square"} <= words:
            name = "L2 norm" if "root" in words else "sum of squares"
        elif "L1" in words or {"sum", "absolute"} <= words:
            name = "L1 norm"
        elif "mean" in words:
            name = "mean"
        else:
            name = "largest element"
        return f"{'relative ' if self.relative else ''}{name}"


class Changes:
    """Reads norms of changes in one loop.

    Args:
        site: The loop.
    """

    def __init__(self, site: LoopSite) -> None:
        self.site = site
        self.entries = {carry.entry: k for k, carry in enumerate(site.carries)}
        self._pending: set[ir.Value] = set()

    def norm(self, value: ir.Value | None) -> Norm | None:
        """What change ``value`` is a norm of; None where it is none."""
        if value is None or value in self._pending:
            return None
        self._pending.add(value)
        try:
            return self._norm(value)
        finally:
            self._pending.discard(value)

    def _norm(self, value: ir.Value) -> Norm | None:
        moved = self.change(value)
        if moved is not None:
            return Norm(frozenset((moved,)), even=False)
        if value in self.entries:  # a residual that is carried: the condition reads the one of the last iteration
            return self.norm(self.site.carries[self.entries[value]].exit)
        node = value.producer()
        if node is None:
            return None
        kind = node.op_type
        if kind in _REDUCTIONS or kind in ("Abs", "Sqrt", "Log") or kind in _SHAPING:
            inner = self.norm(node.inputs[0])
            return None if inner is None else _wrapped(inner, kind)
        if kind in ("Max", "Add", "Sum", "Concat", "Sub"):
            return self._joined(node)
        return self._scaled(node) if kind in ("Mul", "Div", "Pow", "MatMul") else None

    def _joined(self, node: ir.Node) -> Norm | None:
        parts = [(v, self.norm(v)) for v in node.inputs]
        found = [norm for _, norm in parts if norm is not None]
        constant = all(norm is not None or constant_of(v) is not None for v, norm in parts)
        if not found or not constant or (node.op_type == "Sub" and parts[0][1] is None):
            return None
        if node.op_type not in ("Concat", "Sub") and not all(norm.even for norm in found):
            return None
        words = ("max",) if node.op_type == "Max" else ()
        carries = frozenset(k for norm in found for k in norm.carries)
        every = all(norm.even for norm in found)
        return Norm(carries, every, words + tuple(w for n in found for w in n.words), any(n.relative for n in found))

    def _scaled(self, node: ir.Node) -> Norm | None:
        a, b = node.inputs[0], node.inputs[1]
        left, right = self.norm(a), self.norm(b)
        if node.op_type == "Pow":
            power = constant_of(b)
            if left is None or power is None or power.size != 1:
                return None
            exponent = float(power.reshape(-1)[0])
            if exponent % 2 == 0 and exponent > 0:
                return _wrapped(left, "square")
            return _wrapped(left, "Sqrt") if 0 < exponent < 1 else None
        if left is not None and right is not None:
            same = a is not None and b is not None and shaped(a) is shaped(b) and node.op_type in ("Mul", "MatMul")
            squared = dataclasses.replace(left, even=True, words=(*left.words, "square"))
            if not same:
                return None
            return _wrapped(squared, "ReduceSum") if node.op_type == "MatMul" else squared
        if node.op_type == "Div":
            return None if left is None else dataclasses.replace(left, relative=left.relative or constant_of(b) is None)
        if node.op_type == "Mul":
            return left or right
        return None

    def change(self, value: ir.Value) -> int | None:
        """The position of the carry whose change ``value`` is; None where it is none."""
        node = shaped(value).producer()
        if node is not None and node.op_type == "Sub":
            found = self._difference(node.inputs[0], node.inputs[1])
            if found is not None:
                return found
        for k, carry in enumerate(self.site.carries):
            if any(self.is_factor(shaped(value), step) for step in self._updates(carry.entry, carry.exit)):
                return k
        return None

    def _difference(self, a: ir.Value | None, b: ir.Value | None) -> int | None:
        if a is None or b is None:
            return None
        one, other = shaped(a), shaped(b)
        for k, carry in enumerate(self.site.carries):
            exit_, entry = shaped(carry.exit), carry.entry
            if exit_ is entry:
                continue
            pair = {one, other}
            if pair == {exit_, entry}:
                return k
            for p in self.site.carries:  # two carries of which one is the other of an iteration before
                if shaped(p.exit) is entry and pair == {entry, p.entry}:
                    return k
            if exit_ in pair:
                further = other if one is exit_ else one
                if self._is_next(further, k):
                    return k
        return None

    def _is_next(self, value: ir.Value, k: int) -> bool:
        """Whether ``value`` is carry k after one more iteration from the exits."""
        symbols: dict[ir.Value, object] = {carry.entry: ("x", p) for p, carry in enumerate(self.site.carries)}
        own = self._form(self.site.carries[k].exit, symbols)
        after: dict[ir.Value, object] = {shaped(carry.exit): ("x", p) for p, carry in enumerate(self.site.carries)}
        return value not in after and self._form(value, after) == own

    def _form(self, value: ir.Value | None, symbols: dict[ir.Value, object]) -> object:
        """The formula of ``value`` over ``symbols``, equal for equal formulas (nested tuples, shared)."""
        known: dict[ir.Value | None, object] = {}

        def form(v: ir.Value | None, depth: int = 0) -> object:
            if v is None or depth > 200:
                return ("none", depth)
            if v in symbols or shaped(v) in symbols:
                return symbols.get(v, symbols.get(shaped(v)))
            if v in known:
                return known[v]
            node = v.producer()
            constant = constant_of(v)
            if constant is not None and constant.size <= 64:
                result: object = ("constant", str(constant.dtype), constant.shape, constant.tobytes())
            elif node is None or v.graph is not self.site.body or subgraphs_of(node):
                result = ("value", id(v))
            else:
                attributes = tuple(sorted((a.name, repr(a.value)) for a in node.attributes.values()))
                inputs = tuple(form(x, depth + 1) for x in node.inputs)
                result = (node.op_type, attributes, inputs, list(node.outputs).index(v))
            known[v] = result
            return result

        return form(value)

    def _updates(self, entry: ir.Value, exit_: ir.Value) -> Iterator[ir.Value]:
        """What ``exit_`` adds to, or takes from, ``entry``."""
        node = shaped(exit_).producer()
        if node is None or node.op_type not in ("Add", "Sub"):
            return
        a, b = node.inputs[0], node.inputs[1]
        if a is not None and b is not None and shaped(a) is entry:
            yield b
        elif a is not None and b is not None and shaped(b) is entry and node.op_type == "Add":
            yield a

    def is_factor(self, value: ir.Value, product: ir.Value | None, depth: int = 0) -> bool:
        """Whether ``product`` is ``value`` times something."""
        if product is None or depth > 20:
            return False
        product = shaped(product)
        if product is value:
            return True
        node = product.producer()
        if node is None or product.graph is not self.site.body:
            return False
        if node.op_type in ("Neg", "Div"):
            return self.is_factor(value, node.inputs[0], depth + 1)
        if node.op_type in ("Mul", "MatMul"):
            return any(self.is_factor(value, v, depth + 1) for v in node.inputs)
        return False


def shaped(value: ir.Value) -> ir.Value:
    """``value`` seen through what only changes its shape or element type."""
    node = value.producer()
    while node is not None and node.op_type in _SHAPING and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _wrapped(inner: Norm, kind: str) -> Norm | None:
    if kind in ("Sqrt", "Log") and not inner.even:
        return None
    if kind in ("ReduceSum", "ReduceMean", "ReduceMax") and not inner.even:
        return None
    words = {"Abs": "absolute", "Sqrt": "root", "square": "square", **_REDUCTIONS}
    word = (words[kind],) if kind in words else ()
    return dataclasses.replace(
        inner, even=inner.even or kind in _EVEN or kind in ("Abs", "square"), words=inner.words + word
    )
