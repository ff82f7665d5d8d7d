"""A host program: the control flow of a model as plain data, over straight-line bodies that any runner computes.

This file and its neighbours ``host_*`` need the standard library and NumPy alone: the workers import them too, in
environments that have nothing else of this package's, so that no iteration crosses a pipe.

A value has one name in all scopes of a program. Arrays are moved by reference and never written to, so a body has to
give arrays that its later calls leave alone. What the interpreter itself does with arrays is little: it reads a scalar
for a predicate or a trip count, takes slices, and stacks rows into an array that it allocates once.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Union

import numpy as np

from onnx_cfad.targets.tvm import host_loop, host_values

HostProgramError = host_values.HostProgramError

Body = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes the outputs of a body from its inputs, both in the order that its ``Call`` states."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Runs the straight-line body ``body`` on the values ``inputs``."""

    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ListStep:
    """One operator on sequences or optionals (``operator``, an ONNX name): lists, and None for what is absent.

    ``inputs`` has "" for an optional input that is not given.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int] = dataclasses.field(default_factory=dict[str, int])


@dataclasses.dataclass(frozen=True)
class Block:
    """Steps in order, and the values that they are run for."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Branch:
    """Runs one of two blocks; its outputs become ``outputs``."""

    site: str
    predicate: str
    then: Block
    otherwise: Block
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CarryStep:
    """A carried value: ``initial`` -> ``entry``, then ``exit`` -> ``entry`` after each iteration, at last ``final``."""

    initial: str
    entry: str
    exit: str
    final: str


@dataclasses.dataclass(frozen=True)
class SliceStep:
    """``entry`` is the slice of ``source`` along ``axis`` that belongs to the iteration, from the end on if so said."""

    source: str
    entry: str
    axis: int
    reverse: bool


@dataclasses.dataclass(frozen=True)
class StackStep:
    """``stacked`` joins ``element`` of all iterations along ``axis``, each in front of the others when ``reverse``.

    Without an iteration the result has the element type ``dtype`` and, around ``axis``, the dimensions ``dims``.
    """

    element: str
    stacked: str
    axis: int
    reverse: bool
    dtype: str
    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """A Loop or a Scan.

    Attributes:
        site: Its path, for messages.
        body: The steps of an iteration. Its outputs are not used.
        carries: Carried values.
        slices: Sliced inputs; their length along the axis is the trip count.
        stacks: Stacked outputs.
        limit: The largest trip count; "" for none.
        start: The condition for the first iteration; "" for none.
        index: The iteration number as the body sees it; "" when nothing reads it.
        predicate: The condition as the body sees it, which is true; "" when nothing reads it.
        proceed: The condition for the next iteration; "" when it stays true.
    """

    site: str
    body: Block
    carries: tuple[CarryStep, ...]
    slices: tuple[SliceStep, ...] = ()
    stacks: tuple[StackStep, ...] = ()
    limit: str = ""
    start: str = ""
    index: str = ""
    predicate: str = ""
    proceed: str = ""


Step: TypeAlias = Union[Call, ListStep, Branch, Repeat]  # noqa: UP007 - evaluated, also by Python 3.9


@dataclasses.dataclass(frozen=True)
class HostProgram:
    """A model as a program.

    Attributes:
        inputs: The names of the model's inputs.
        outputs: The names of its outputs.
        main: What is run; its outputs are those of the model, in order, under the names that they have in the program.
        constants: Values that the program itself reads: limits, conditions, initial carries, inputs with a default.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    main: Block
    constants: dict[str, np.ndarray[Any, Any]] = dataclasses.field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """The program as text; the same program gives the same text."""
        constants = {name: _array_to_plain(array) for name, array in self.constants.items()}
        plain = {"inputs": self.inputs, "outputs": self.outputs, "main": _to_plain(self.main), "constants": constants}
        return json.dumps(plain, indent=1)

    @classmethod
    def from_json(cls, text: str) -> HostProgram:
        """The program that ``to_json`` wrote."""
        plain = json.loads(text)
        constants = {name: _array_from_plain(array) for name, array in plain["constants"].items()}
        return cls(tuple(plain["inputs"]), tuple(plain["outputs"]), _from_plain(plain["main"]), constants)

    def calls(self) -> Iterator[Call]:
        """Every call, outer before inner, in the order of the program."""
        yield from _calls(self.main)


def _calls(block: Block) -> Iterator[Call]:
    for step in block.steps:
        if isinstance(step, Call):
            yield step
        for inner in _blocks(step):
            yield from _calls(inner)


def _blocks(step: Step) -> tuple[Block, ...]:
    if isinstance(step, Branch):
        return step.then, step.otherwise
    return (step.body,) if isinstance(step, Repeat) else ()


_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Call, ListStep, Block, Branch, CarryStep, SliceStep, StackStep, Repeat)
}


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = {field.name: _to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(item) for item in value)
    if isinstance(value, dict) and "kind" in value:
        return _KINDS[value["kind"]](**{key: _from_plain(item) for key, item in value.items() if key != "kind"})
    return value


def _array_to_plain(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.kind in "OSU":
        return {"dtype": "str", "shape": array.shape, "data": [str(item) for item in array.reshape(-1)]}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": array.shape, "data": data}


def _array_from_plain(plain: dict[str, Any]) -> np.ndarray[Any, Any]:
    if plain["dtype"] == "str":
        return np.array(plain["data"], dtype=object).reshape(plain["shape"])
    data = base64.b64decode(plain["data"])
    return np.frombuffer(data, dtype=np.dtype(plain["dtype"])).reshape(plain["shape"])


def run(program: HostProgram, bodies: Mapping[str, Body], feeds: Mapping[str, Any], xp: Any = np) -> dict[str, Any]:
    """The outputs of the program by name: arrays, or lists of arrays for sequences.

    Args:
        program: The program.
        bodies: What computes each body, by name; looked up when the program is made ready, so a lazy one is a callable.
        feeds: Arrays (or lists of arrays) for its inputs, by name; those with a default may be left out.
        xp: The module of the arrays that rows are stacked in: NumPy, or one with its interface.

    Raises:
        HostProgramError: An input is missing, or a step cannot be done.
    """
    return Machine(program, bodies, xp).run(feeds)


class Machine:
    """A program made ready to be run several times. Args as for ``run``.

    Values are dropped after the last step that reads them.
    """

    def __init__(self, program: HostProgram, bodies: Mapping[str, Body], xp: Any = np) -> None:
        self._program = program
        self._bodies = bodies
        self._xp = xp
        self._slots: dict[str, int] = {}
        main = program.main
        for name in (*program.inputs, *program.constants):
            self._slot(name)
        self._steps = self._block(main, (), main.outputs)
        self._results = [self._slot(name) for name in main.outputs]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, from the inputs by name.

        Raises:
            HostProgramError: An input is missing, or a step cannot be done.
        """
        registers: list[Any] = [None] * len(self._slots)
        for name, array in self._program.constants.items():
            registers[self._slots[name]] = array
        for name in self._program.inputs:
            if name in feeds:
                registers[self._slots[name]] = feeds[name]
            elif name not in self._program.constants:
                raise HostProgramError(f"no value is given for the input '{name}'")
        for step in self._steps:
            step(registers)
        return dict(zip(self._program.outputs, (registers[k] for k in self._results), strict=True))

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _block(self, block: Block, entries: Sequence[str], kept: Sequence[str]) -> list[_Action]:
        """Actions for the steps; a value made here, or among ``entries``, is dropped after its last reader."""
        last: dict[str, int] = dict.fromkeys(entries, -1)
        for position, step in enumerate(block.steps):
            last.update((name, position) for name in _reads(step) if name in last)
            last.update(dict.fromkeys(_made(step), position))
        dying: list[list[int]] = [[] for _ in block.steps]
        for name, position in last.items():
            if name not in kept and position >= 0:
                dying[position].append(self._slot(name))
        return [self._action(step, dead) for step, dead in zip(block.steps, dying, strict=True)]

    def _action(self, step: Step, dead: list[int]) -> _Action:
        if isinstance(step, Call):
            return self._call(step, dead)
        if isinstance(step, ListStep):
            return self._list_step(step, dead)
        return self._branch(step, dead) if isinstance(step, Branch) else self._repeat(step, dead)

    def _call(self, step: Call, dead: list[int]) -> _Action:
        body = self._bodies[step.body]
        inputs, outputs = [self._slot(n) for n in step.inputs], [self._slot(n) for n in step.outputs]

        def call(registers: list[Any]) -> None:
            results = body([registers[k] for k in inputs])
            for k, result in zip(outputs, results):  # noqa: B905 - strict costs time, and a body states its outputs
                registers[k] = result
            for k in dead:
                registers[k] = None

        return call

    def _list_step(self, step: ListStep, dead: list[int]) -> _Action:
        compute, xp = host_values.OPERATORS[step.operator], self._xp
        inputs = [self._slot(name) if name else None for name in step.inputs]
        output = self._slot(step.outputs[0])

        def list_step(registers: list[Any]) -> None:
            try:
                registers[output] = compute(xp, [None if k is None else registers[k] for k in inputs], step.attributes)
            except (IndexError, ValueError) as error:
                raise HostProgramError(f"{step.operator} that gives '{step.outputs[0]}': {error}") from error
            for k in dead:
                registers[k] = None

        return list_step

    def _branch(self, step: Branch, dead: list[int]) -> _Action:
        predicate = self._slot(step.predicate)
        sides = [self._side(block) for block in (step.otherwise, step.then)]
        outputs = [self._slot(name) for name in step.outputs]

        def branch(registers: list[Any]) -> None:
            actions, results, own = sides[bool(host_values.scalar(registers[predicate]))]
            for action in actions:
                action(registers)
            values = [registers[k] for k in results]
            for k in own:
                registers[k] = None
            for k, value in zip(outputs, values):  # noqa: B905 - both are made from one node
                registers[k] = value
            for k in dead:
                registers[k] = None

        return branch

    def _side(self, block: Block) -> tuple[list[_Action], list[int], list[int]]:
        made = {name for step in block.steps for name in _made(step)}
        results = [self._slot(name) for name in block.outputs]
        return self._block(block, (), block.outputs), results, [self._slot(n) for n in block.outputs if n in made]

    def _repeat(self, step: Repeat, dead: list[int]) -> _Action:
        loop = host_loop.Loop(step, self._slot, self._xp)
        entries = [c.entry for c in step.carries] + [s.entry for s in step.slices]
        entries += [step.index] if step.index else []  # the predicate is set once
        kept = [c.exit for c in step.carries] + [s.element for s in step.stacks] + [step.proceed]
        loop.actions = self._block(step.body, entries, kept)
        made = {name for inner in step.body.steps for name in _made(inner)}
        own = [self._slot(name) for name in dict.fromkeys((*entries, *kept)) if name in made or name in entries]

        def repeat(registers: list[Any]) -> None:
            loop.run(registers)
            for k in own:
                registers[k] = None
            for k in dead:
                registers[k] = None

        return repeat


_Action = Callable[[list[Any]], None]


def _reads(step: Step) -> list[str]:
    """What a step reads, its blocks included (also what they make themselves)."""
    names: list[str] = []
    if isinstance(step, (Call, ListStep)):
        names += step.inputs
    elif isinstance(step, Branch):
        names.append(step.predicate)
    else:
        names += [step.limit, step.start, step.proceed, *(s.source for s in step.slices)]
        names += [
            *(c.initial for c in step.carries),
            *(c.exit for c in step.carries),
            *(s.element for s in step.stacks),
        ]
    for block in _blocks(step):
        names += block.outputs
        names += [name for inner in block.steps for name in _reads(inner)]
    return names


def _made(step: Step) -> tuple[str, ...]:
    if isinstance(step, Repeat):
        return (*(c.final for c in step.carries), *(s.stacked for s in step.stacks))
    return step.outputs
