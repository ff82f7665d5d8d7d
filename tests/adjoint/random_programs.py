"""Random models: nests of Loop, Scan and If with small random bodies, as ONNX text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from tests.corpus.entry import Example, example

T = TypeVar("T")
Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((), (3,), (2, 3))
FEEDS: dict[str, Shape] = {"x": (3,), "m": (2, 3), "s": ()}
NUMBERS = (
    "int64 k0 = {0}, int64 k1 = {1}, int64 k2 = {2}, int64 k3 = {3}, double level = {0.1}, "
    "int64[1] axis0 = {0}, int64[1] axis1 = {1}, int64[1] end = {9}"
)


@dataclasses.dataclass(frozen=True)
class Variable:
    """A floating-point value in reach, and the scope that made it."""

    name: str
    shape: Shape
    scope: int


@dataclasses.dataclass
class Scope:
    """What a body or branch can read: everything outer, and what it made itself.

    Attributes:
        depth: How many control-flow nodes surround it.
        values: Floating-point values.
        integers: Scalar integers: trip limits, iteration numbers.
        predicates: Scalar booleans.
        lines: The text so far.
    """

    number: int
    depth: int
    values: list[Variable]
    integers: list[str]
    predicates: list[str]
    lines: list[str]

    def own(self, name: str, shape: Shape) -> Variable:
        """Enters a value that this scope made."""
        self.values.append(Variable(name, shape, self.number))
        return self.values[-1]


def declared(shape: Sequence[int | str] | None) -> str:
    """A type in ONNX text; a shape of None is left out."""
    if shape is None:
        return "double[]"
    return f"double[{', '.join(map(str, shape))}]" if shape else "double"


class Program:
    """Draws one model.

    Args:
        draw: Hypothesis's way to choose.
        depth: How deep control flow may nest.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], depth: int) -> None:
        self.draw, self.depth = draw, depth
        self.count = 0
        self.scopes = 0
        self.symbolic = self.number(0, 2) == 0

    def example(self) -> Example:
        """The model with feeds, differentiated by all floating-point inputs."""
        scope = Scope(0, 0, [], ["n", "k0", "k1", "k2", "k3"], ["p"], [])
        for name, shape in FEEDS.items():
            scope.own(name, shape)
        self.statements(scope, self.number(2, 4), ("loop", "scan", "branch"))
        results = [self.copied(scope, self.pick(scope)) for _ in range(self.number(1, 2))]
        made = [v for v in scope.values if v.scope == 0 and v.name not in FEEDS]
        results.append(self.copied(scope, made[-1]))
        inputs = ", ".join(f"{declared(self.outside(name, shape))} {name}" for name, shape in FEEDS.items())
        outputs = ", ".join(f"{declared(self.outside(v.name, v.shape))} {v.name}" for v in results)
        text = f"({inputs}, int64 n, bool p) => ({outputs}) <{NUMBERS}> {{\n" + "\n".join(scope.lines) + "\n}"
        feeds: dict[str, Any] = {**FEEDS, "s": np.asarray(0.7), "n": self.number(0, 3), "p": self.flip()}
        seeded = tuple(v.name for v in results if self.flip()) or None
        return example("double", text, feeds, outputs=seeded)

    def outside(self, name: str, shape: Shape) -> Sequence[int | str]:
        """A shape of the interface: in one model of three every dimension is a symbol of its own."""
        return [f"{name}_{axis}" for axis in range(len(shape))] if self.symbolic else shape

    def statements(self, scope: Scope, count: int, must: Sequence[str] = ()) -> None:
        """Writes ``count`` statements, the first of which is one of ``must``."""
        plain = ("unary", "binary", "binary", "reduce", "select", "gather", "product", "join")
        nested = ("loop", "scan", "branch", "grow") if scope.depth < self.depth else ()
        for position in range(count):
            kinds = tuple(must) if must and position == 0 else (*plain, *nested)
            getattr(self, self.choose(kinds))(scope)

    def unary(self, scope: Scope) -> None:
        source = self.pick(scope)
        self.emit(scope, self.choose(("Sin", "Tanh", "Sin", "Neg")), [source.name], source.shape)

    def binary(self, scope: Scope) -> None:
        a, b = self.pick(scope), self.pick(scope)
        product = self.emit(scope, self.choose(("Mul", "Add", "Sub")), [a.name, b.name], max(a.shape, b.shape, key=len))
        self.emit(scope, "Sin", [product.name], product.shape)

    def reduce(self, scope: Scope) -> None:
        source = self.pick(scope)
        if source.shape:
            self.emit(scope, "ReduceSum <keepdims = 0>", [source.name, "axis0"], source.shape[1:])

    def select(self, scope: Scope) -> None:
        a, b = self.pick(scope), self.pick(scope)
        mask = self.line(scope, "Greater", [a.name, "level"])
        self.emit(scope, "Where", [mask, a.name, b.name], max(a.shape, b.shape, key=len))

    def gather(self, scope: Scope) -> None:
        """Row i of a matrix or element i of a vector, i being any integer in reach, counted round."""
        source = self.pick(scope, self.choose(((3,), (2, 3))))
        at = self.line(scope, "Mod", [self.choose(scope.integers), "k2"])
        self.emit(scope, "Gather", [source.name, at], source.shape[1:])

    def product(self, scope: Scope) -> None:
        """A matrix with a vector, or with a matrix transposed and back."""
        a, b = self.pick(scope, (2, 3)), self.pick(scope, self.choose(((3,), (2, 3))))
        if len(b.shape) == 1:
            rows = self.line(scope, "MatMul", [a.name, b.name])
            column = self.line(scope, "Unsqueeze", [rows, "axis1"])
            found = self.emit(scope, "Mul", [column, a.name], (2, 3))
        else:
            turned = self.line(scope, "Transpose", [b.name])
            square = self.line(scope, "MatMul", [a.name, turned])
            found = self.emit(scope, "MatMul", [square, a.name], (2, 3))
        self.emit(scope, "Sin", [found.name], (2, 3))

    def join(self, scope: Scope) -> None:
        """Two rows on top of each other, or the ends of a vector changed round."""
        if self.flip():
            rows = [self.line(scope, "Unsqueeze", [self.pick(scope, (3,)).name, "axis0"]) for _ in range(2)]
            self.emit(scope, "Concat <axis = 0>", rows, (2, 3))
            return
        source = self.pick(scope, (3,))
        first = self.line(scope, "Slice", [source.name, "axis0", "axis1", "axis0"])
        rest = self.line(scope, "Slice", [source.name, "axis1", "end", "axis0"])
        self.emit(scope, "Concat <axis = 0>", [rest, first], (3,))

    def branch(self, scope: Scope) -> None:
        """An If whose branches return values of the same shapes, or one value of differing shapes that is summed up."""
        predicate = self.predicate(scope)
        differing = self.number(0, 3) == 0
        shapes: list[list[Shape]] = [[self.choose(SHAPES)] for _ in range(2)]
        if not differing:
            shapes = [[self.choose(SHAPES) for _ in range(self.number(1, 2))]] * 2
        branches: list[str] = []
        for side, wanted in zip(("then_branch", "else_branch"), shapes, strict=True):
            inner = self.inside(scope)
            self.statements(inner, self.number(1, 3))
            results = [self.copied(inner, self.pick(inner, shape)) for shape in wanted]
            heads = self.heads(results)
            branches.append(f"{side} = {self.fresh('g')} () => ({heads}) {{\n" + "\n".join(inner.lines) + "\n}")
        outs = [self.fresh("o") for _ in shapes[0]]
        scope.lines.append(f"{', '.join(outs)} = If ({predicate}) <{', '.join(branches)}>")
        if shapes[0] == shapes[1]:
            for name, shape in zip(outs, shapes[0], strict=True):
                scope.own(name, shape)
        else:
            square = self.line(scope, "Mul", [outs[0], outs[0]])
            self.emit(scope, "ReduceSum <keepdims = 0>", [square], ())

    def loop(self, scope: Scope) -> None:
        carries = [self.pick(scope) for _ in range(self.number(1, 3))]
        index, going, again = self.fresh("i"), self.fresh("c"), self.fresh("d")
        inner = self.inside(scope)
        inner.integers.append(index)
        entries = [inner.own(self.fresh("h"), carry.shape) for carry in carries]
        inputs = [f"int64 {index}", f"bool {going}"]
        inputs += [f"{declared(self.maybe(v.shape))} {v.name}" for v in entries]
        self.statements(inner, self.number(1, 4))
        exits = [self.exit(inner, entry) for entry in entries]
        rows = [self.copied(inner, self.pick(inner)) for _ in range(self.number(0, 2))]
        certain = self.symbolic and bool(
            rows
        )  # without an iteration ONNX Runtime gives symbolic dimensions of rows as 0
        limit = self.choose(("k1", "k2", "k3") if certain else (*scope.integers, "k3", "k2"))
        stops = self.choose((None, None, "k1", *scope.integers))
        inner.lines.append(f"{again} = Identity ({going})" if stops is None else f"{again} = Less ({index}, {stops})")
        heads = f"bool {again}, {self.heads([*exits, *rows], sure=bool(rows))}"
        finals, stacks = [self.fresh("f") for _ in exits], [self.fresh("r") for _ in rows]
        start = "" if certain else self.choose(("", "", self.choose(scope.predicates)))
        initial = ", ".join(v.name for v in carries)
        body = f"body = {self.fresh('b')} ({', '.join(inputs)}) => ({heads})"
        scope.lines.append(f"{', '.join([*finals, *stacks])} = Loop ({limit}, {start}, {initial}) <{body} {{")
        scope.lines += [*inner.lines, "}>"]
        self.take_results(scope, finals, exits, stacks, [v.shape for v in rows])

    def scan(self, scope: Scope) -> None:
        """A Scan over rows or columns, forwards or backwards, with states and stacked results."""
        sources = [v for v in scope.values if v.shape == (2, 3)]
        axis, backwards = self.choose((0, 1, -1, -2)), self.number(0, 1)
        chosen = [self.choose(sources) for _ in range(self.number(1, 2))]
        states = [self.pick(scope) for _ in range(self.number(0, 2))]
        inner = self.inside(scope)
        length = (2, 3)[axis]
        inside: Shape = ((3,), (2,))[axis % 2]
        entries = [inner.own(self.fresh("h"), v.shape) for v in states]
        slices = [self.fresh("u") for _ in chosen]
        inputs = [f"{declared(self.maybe(v.shape))} {v.name}" for v in entries]
        inputs += [f"{declared(self.maybe(inside))} {name}" for name in slices]
        for name in slices:
            self.read_slice(inner, name, inside)
        self.statements(inner, self.number(1, 3))
        exits = [self.copied(inner, self.pick(inner, v.shape)) for v in entries]
        rows = [self.copied(inner, self.pick(inner)) for _ in range(self.number(0 if states else 1, 2))]
        heads = self.heads([*exits, *rows], sure=True)
        finals, stacks = [self.fresh("f") for _ in exits], [self.fresh("r") for _ in rows]
        layouts = [(self.number(0, len(v.shape)), self.number(0, 1)) for v in rows]
        attributes = [f"num_scan_inputs = {len(chosen)}", f"scan_input_axes = {[axis] * len(chosen)}"]
        attributes.append(f"scan_input_directions = {[backwards] * len(chosen)}")
        if rows:
            attributes.append(f"scan_output_axes = {[a for a, _ in layouts]}")
            attributes.append(f"scan_output_directions = {[d for _, d in layouts]}")
        attributes.append(f"body = {self.fresh('b')} ({', '.join(inputs)}) => ({heads}) {{")
        operands = ", ".join(v.name for v in (*states, *chosen))
        scope.lines.append(f"{', '.join([*finals, *stacks])} = Scan <{', '.join(attributes)}")
        scope.lines += [*inner.lines, f"}}> ({operands})"]
        for name, entry in zip(finals, exits, strict=True):
            scope.own(name, entry.shape)
        for name, row, (at, _) in zip(stacks, rows, layouts, strict=True):
            shape = (*row.shape[:at], length, *row.shape[at:])
            self.read_slice(scope, name, shape) if shape not in SHAPES else scope.own(name, shape)

    def grow(self, scope: Scope) -> None:
        """A loop whose carry grows by a vector each iteration, and is summed up behind it."""
        start, more = self.pick(scope, (3,)), self.pick(scope, (3,))
        names = [self.fresh(hint) for hint in ("i", "c", "d", "h", "t", "q", "f")]
        index, going, again, entry, turned, exit_, final = names
        heads = f"(int64 {index}, bool {going}, double[] {entry}) => (bool {again}, double[] {exit_})"
        body = f"body = {self.fresh('b')} {heads}"
        scope.lines.append(f"{final} = Loop ({self.choose(scope.integers)}, , {start.name}) <{body} {{")
        scope.lines += [
            f"{again} = Identity ({going})",
            f"{turned} = Sin ({entry})",
            f"{exit_} = Concat <axis = 0> ({turned}, {more.name})",
            "}>",
        ]
        square = self.line(scope, "Mul", [final, final])
        total = self.emit(scope, "ReduceSum <keepdims = 0>", [square], ())
        self.emit(scope, "Sin", [total.name], ())

    def take_results(
        self, scope: Scope, finals: list[str], exits: list[Variable], stacks: list[str], shapes: list[Shape]
    ) -> None:
        """Enters final carries, and stacked rows summed over the iterations (of which there may be none)."""
        for name, value in zip(finals, exits, strict=True):
            scope.own(name, value.shape)
        for name, shape in zip(stacks, shapes, strict=True):
            self.emit(scope, "ReduceSum <keepdims = 0>", [name, "axis0"], shape)

    def exit(self, inner: Scope, entry: Variable) -> Variable:
        """The next carry: a value of the body as it is (another entry, or the entry itself, at times) or a copy."""
        value = self.pick(inner, entry.shape)
        return value if value.scope == inner.number and self.flip() else self.copied(inner, value)

    def read_slice(self, scope: Scope, name: str, shape: Shape) -> None:
        """Brings a value of any shape to one that all statements know: itself, or its sum over all axes."""
        if shape in SHAPES:
            scope.own(name, shape)
            return
        turned = self.line(scope, "Sin", [name])
        self.emit(scope, "ReduceSum <keepdims = 0>", [turned], ())

    def predicate(self, scope: Scope) -> str:
        """A scalar boolean: from outside, from integers, or from data."""
        kind = self.choose(("given", "integers", "data"))
        if kind == "given":
            return self.choose(scope.predicates)
        if kind == "integers":
            a, b = self.choose(scope.integers), self.choose(scope.integers)
            found = self.line(scope, self.choose(("Less", "Equal")), [a, b])
        else:
            total = self.line(scope, "ReduceSum <keepdims = 0>", [self.pick(scope).name])
            found = self.line(scope, "Greater", [total, "level"])
        scope.predicates.append(found)
        return found

    def pick(self, scope: Scope, shape: Shape | None = None) -> Variable:
        """A value in reach, rather a recent one; of ``shape`` where that is asked for."""
        fitting = [v for v in scope.values if shape is None or v.shape == shape]
        if not fitting:
            source = next(v for v in reversed(scope.values) if len(v.shape) >= len(shape or ()))
            axes = self.line(scope, "Identity", [source.name])
            while len(source.shape) > len(shape or ()):
                source = self.emit(scope, "ReduceSum <keepdims = 0>", [axes, "axis0"], source.shape[1:])
                axes = source.name
            return source
        return fitting[-1 - min(self.number(0, 5), len(fitting) - 1)]

    def copied(self, scope: Scope, value: Variable) -> Variable:
        """A copy made in ``scope``, as results that come from outside need it."""
        return self.emit(scope, "Identity", [value.name], value.shape)

    def emit(self, scope: Scope, operator: str, operands: list[str], shape: Shape) -> Variable:
        """Writes a node and enters its result."""
        return scope.own(self.line(scope, operator, operands), shape)

    def line(self, scope: Scope, operator: str, operands: list[str]) -> str:
        """Writes a node and gives the name of its result."""
        name = self.fresh("v")
        scope.lines.append(f"{name} = {operator} ({', '.join(operands)})")
        return name

    def inside(self, scope: Scope) -> Scope:
        """A scope below ``scope``, which sees all of it."""
        self.scopes += 1
        lists = [*scope.values], [*scope.integers], [*scope.predicates]
        return Scope(self.scopes, scope.depth + 1, *lists, [])

    def heads(self, results: Sequence[Variable], *, sure: bool = False) -> str:
        """The results of a body or branch, some (or all, when ``sure``) with their shape declared."""
        shapes = [self.outside(v.name, v.shape) if sure or self.flip() else None for v in results]
        return ", ".join(f"{declared(shape)} {v.name}" for v, shape in zip(results, shapes, strict=True))

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def maybe(self, shape: Shape) -> Shape | None:
        """The shape, or none: exporters declare few shapes inside bodies."""
        return shape if not self.symbolic and self.flip() else None

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def flip(self) -> bool:
        return bool(self.draw(st.booleans()))

    def choose(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))


@st.composite
def programs(draw: Any, depth: int = 2) -> Example:
    """Models whose control flow nests up to ``depth`` deep."""
    return Program(draw, depth).example()
