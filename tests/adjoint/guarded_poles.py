"""Random models with poles behind nested branches and loops, and what they give: eager forward mode in dual numbers.

Each statement is written twice: as a line of ONNX text, and as a step on duals that runs only when it is reached, so
that what a branch or a loop of no trips leaves out touches nothing. A dual's derivative by an input that it does not
depend on is None, and no pole makes a NaN of it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Environment = dict[str, Any]
Step = Callable[[Environment], None]

WRT = ("z", "w")
TRIPS = ("none", "one", "two")
PREDICATES = ("p", "q")


@dataclasses.dataclass(frozen=True)
class Dual:
    """A value and its derivatives by ``WRT``, element by element; None where it does not depend on one."""

    value: Array
    by: tuple[Array | None, ...]

    def mapped(self, value: Array, slope: Array) -> Dual:
        """A function of this value that has this ``slope`` here."""
        return Dual(value, tuple(None if d is None else slope * d for d in self.by))


def _joined(a: Dual, b: Dual, value: Array, left: Array, right: Array) -> Dual:
    """A function of two values with its slope by each."""
    parts = zip(a.mapped(value, left).by, b.mapped(value, right).by, strict=True)
    return Dual(value, tuple(y if x is None else x if y is None else x + y for x, y in parts))


ONE = np.ones(2)
POLES: Mapping[str, Callable[[Dual], Dual]] = {
    "Log": lambda x: x.mapped(np.log(x.value), 1 / x.value),
    "Sqrt": lambda x: x.mapped(np.sqrt(x.value), 0.5 / np.sqrt(x.value)),
    "Reciprocal": lambda x: x.mapped(1 / x.value, -1 / x.value**2),
}
SMOOTH: Mapping[str, Callable[[Dual], Dual]] = {
    "Neg": lambda x: x.mapped(-x.value, -ONE),
    "Sin": lambda x: x.mapped(np.sin(x.value), np.cos(x.value)),
    "Tanh": lambda x: x.mapped(np.tanh(x.value), 1 - np.tanh(x.value) ** 2),
    "Identity": lambda x: x,
}
BINARY: Mapping[str, Callable[[Dual, Dual], Dual]] = {
    "Add": lambda a, b: _joined(a, b, a.value + b.value, ONE, ONE),
    "Sub": lambda a, b: _joined(a, b, a.value - b.value, ONE, -ONE),
    "Mul": lambda a, b: _joined(a, b, a.value * b.value, b.value, a.value),
}


class GuardedPoles:
    """One random model; ``text`` is its ONNX text, ``run`` gives the dual of its output y.

    Args:
        seed: Chooses everything.
        depth: How deep branches and loops nest.
    """

    def __init__(self, seed: int, depth: int = 2) -> None:
        self.random, self.count = random.Random(seed), 0
        scope: list[str] = list(WRT)
        lines, self.steps = self._block(scope, depth, self.random.randint(3, 6))
        self.last = scope[-1]
        ports = ", ".join([*(f"double[2] {x}" for x in WRT), *(f"bool {p}" for p in PREDICATES)])
        trips = ", ".join(f"int64 {n}" for n in TRIPS)
        self.text = f"({ports}, {trips}) => (double[2] y) {{\n{lines}\ny = Identity ({self.last})\n}}"

    def run(self, feeds: Mapping[str, Array]) -> Dual:
        """The output, of the statements that these inputs reach."""
        scope: Environment = dict(feeds)
        for index, name in enumerate(WRT):
            scope[name] = Dual(feeds[name], tuple(ONE if k == index else None for k in range(len(WRT))))
        with np.errstate(all="ignore"):
            for step in self.steps:
                step(scope)
        return scope[self.last]

    def _name(self, hint: str = "v") -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def _block(self, scope: list[str], depth: int, size: int) -> tuple[str, list[Step]]:
        """``size`` statements on the names in ``scope``, which their results join."""
        lines: list[str] = []
        steps: list[Step] = []
        for _ in range(size):
            nested = 3 if depth else 0
            kind = self.random.choices(
                (self._pole, self._smooth, self._binary, self._if, self._loop), (3, 3, 3, nested, nested)
            )[0]
            made = self._name()
            line, step = kind(scope, made, depth)
            lines.append(line)
            steps.append(step)
            scope.append(made)
        return "\n".join(lines), steps

    def _pole(
        self, scope: Sequence[str], made: str, _: int, table: Mapping[str, Callable[[Dual], Dual]] = POLES
    ) -> tuple[str, Step]:
        name, read = self.random.choice(list(table)), self.random.choice(scope)
        return f"{made} = {name} ({read})", lambda e: e.__setitem__(made, table[name](e[read]))

    def _smooth(self, scope: Sequence[str], made: str, depth: int) -> tuple[str, Step]:
        return self._pole(scope, made, depth, SMOOTH)

    def _binary(self, scope: Sequence[str], made: str, _: int) -> tuple[str, Step]:
        name, a, b = self.random.choice(list(BINARY)), self.random.choice(scope), self.random.choice(scope)
        return f"{made} = {name} ({a}, {b})", lambda e: e.__setitem__(made, BINARY[name](e[a], e[b]))

    def _inside(self, scope: Sequence[str], depth: int, least: int) -> tuple[str, list[Step], str]:
        """The statements of a subgraph, and the name of what it returns: one of the latest, as a rule."""
        inner = list(scope)
        lines, steps = self._block(inner, depth - 1, self.random.randint(least, 2))
        return lines, steps, self.random.choice(inner[-3:] if self.random.random() < 0.65 else inner)

    def _if(self, scope: Sequence[str], made: str, depth: int) -> tuple[str, Step]:
        predicate, sides = self.random.choice(PREDICATES), [self._inside(scope, depth, 0) for _ in range(2)]
        graphs = [
            f"{side} = {self._name('g')} () => (double[2] {out}) {{ {lines} {out} = Identity ({result}) }}"
            for side, out, (lines, _, result) in zip(
                ("then_branch", "else_branch"), (self._name("r"), self._name("r")), sides, strict=True
            )
        ]

        def run(scope: Environment) -> None:
            _, steps, result = sides[0 if scope[predicate] else 1]
            for step in steps:
                step(scope)
            scope[made] = scope[result]

        return f"{made} = If ({predicate}) <{', '.join(graphs)}>", run

    def _loop(self, scope: Sequence[str], made: str, depth: int) -> tuple[str, Step]:
        trips, start = self.random.choice(TRIPS), self.random.choice(scope)
        index, going, entry, on, next_ = (self._name(hint) for hint in ("i", "c", "h", "d", "n"))
        lines, steps, result = self._inside([*scope, entry], depth, 1)
        heads = f"(int64 {index}, bool {going}, double[2] {entry}) => (bool {on}, double[2] {next_})"
        body = f"{on} = Identity ({going}) {lines} {next_} = Identity ({result})"

        def run(scope: Environment) -> None:
            carry = scope[start]
            for _ in range(int(scope[trips])):
                scope[entry] = carry
                for step in steps:
                    step(scope)
                carry = scope[result]
            scope[made] = carry

        return f"{made} = Loop ({trips}, , {start}) <body = {self._name('b')} {heads} {{ {body} }}>", run
