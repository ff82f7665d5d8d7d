"""Every generated name: interface names are fixed by convention, inner names are fresh in all scopes of a model."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.graph.walk import scopes_of

COTANGENT_SUFFIX = "_grad"
TANGENT_SUFFIX = "_tangent"
ADJOINT = "onnx_cfad.adjoint"
"""The key in a node's metadata that says how it is run backwards, such as ``implicit(solver=gmres)``."""

_NUMBERED = re.compile(rf"(?P<name>.+){COTANGENT_SUFFIX}(_[1-9]\d*)?", re.DOTALL)


def site_name(path: str) -> str:
    """The name of a control-flow site in names of outputs: its path, without the main graph, as one word."""
    return path.removeprefix("main/").replace("/", ".")


def cotangent_name(name: str, taken: Collection[str] = ()) -> str:
    """The interface name of the cotangent of ``name``: a seed for an output, a gradient for a wrt value.

    That is ``<name>_grad``; where ``taken`` has it, ``<name>_grad_2``, or the next number that is free.
    """
    return _free(name + COTANGENT_SUFFIX, taken)


def tangent_name(name: str, taken: Collection[str] = ()) -> str:
    """The interface name of the tangent of ``name``, numbered like a cotangent's: an input, or a result."""
    return _free(name + TANGENT_SUFFIX, taken)


def _free(own: str, taken: Collection[str]) -> str:
    numbered = (f"{own}_{count}" for count in itertools.count(2))
    return next(candidate for candidate in itertools.chain([own], numbered) if candidate not in taken)


def primal_name(cotangent: str) -> str | None:
    """What ``cotangent_name`` made ``cotangent`` from; None for a name that it does not make."""
    match = _NUMBERED.fullmatch(cotangent)
    return match["name"] if match else None


@dataclasses.dataclass(frozen=True)
class InterfaceNames:
    """The names of what a gradient model takes and gives beyond its primal.

    Attributes:
        seeds: The seed of each differentiated output, by the output's name.
        gradients: The gradient of each wrt value, by the name that it was asked for with.
        tangents: The tangent input of each wrt value, by the name that it was asked for with (forward mode).
        pushed: The tangent of each differentiated output, by the output's name (forward mode).
    """

    seeds: Mapping[str, str]
    gradients: Mapping[str, str]
    tangents: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    pushed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @classmethod
    def beside(cls, taken: Iterable[str], outputs: Sequence[str], wrt: Sequence[str]) -> InterfaceNames:
        """Names that are not among ``taken``; seeds are named first, then gradients, each in order."""
        used = set(taken)
        seeds, gradients = ({}, {})
        for names, found in ((outputs, seeds), (wrt, gradients)):
            for name in dict.fromkeys(names):
                found[name] = cotangent_name(name, used)
                used.add(found[name])
        return cls(seeds, gradients)

    @classmethod
    def forward(cls, taken: Iterable[str], outputs: Sequence[str], wrt: Sequence[str]) -> InterfaceNames:
        """The same for forward mode: tangent inputs are named first, then tangents of outputs."""
        used = set(taken)
        tangents, pushed = ({}, {})
        for names, found in ((wrt, tangents), (outputs, pushed)):
            for name in dict.fromkeys(names):
                found[name] = tangent_name(name, used)
                used.add(found[name])
        return cls({}, {}, tangents, pushed)

    def all(self) -> tuple[str, ...]:
        """Every name, those of inputs first."""
        parts = (self.seeds, self.tangents, self.gradients, self.pushed)
        return tuple(name for part in parts for name in part.values())

    def renamed(self) -> tuple[str, ...]:
        """A sentence for each name that is numbered because the model has ``<name>_grad`` (or tangent) already."""
        parts = (
            ("seed of output", COTANGENT_SUFFIX, self.seeds),
            ("gradient by", COTANGENT_SUFFIX, self.gradients),
            ("tangent of", TANGENT_SUFFIX, self.tangents),
            ("tangent of output", TANGENT_SUFFIX, self.pushed),
        )
        return tuple(
            f"the {what} '{name}' is called '{given}': '{name}{suffix}' is taken"
            for what, suffix, names in parts
            for name, given in names.items()
            if given != name + suffix
        )


class Namer:
    """Hands out names that no scope of a model uses, the same ones in the same order every time.

    Args:
        reserved: Names that are taken.
        model: A model whose names are taken too, read when the first name is asked for (``on_demand``).
    """

    def __init__(self, reserved: set[str], model: ir.Model | None = None) -> None:
        self._reserved = set(reserved)
        self._model = model
        self._counts: dict[str, int] = {}

    @classmethod
    def of_model(cls, model: ir.Model) -> Namer:
        """A namer that avoids every value, node and graph name in ``model``, subgraphs included."""
        return cls(names_in(model))

    @classmethod
    def on_demand(cls, model: ir.Model) -> Namer:
        """The same, read when the first name is asked for: for rewritings that mostly find nothing to do.

        What has been taken out of the model by then is not seen, even if it is put back: ``read`` it before.
        """
        return cls(set(), model)

    def read(self) -> None:
        """Reads the model's names, unless they are read: to be called before nodes are moved."""
        self._used  # noqa: B018 - computed on access

    @functools.cached_property
    def _used(self) -> set[str]:
        return self._reserved if self._model is None else self._reserved | names_in(self._model)

    def reserve(self, name: str) -> bool:
        """Marks ``name`` as used; false when it already was."""
        used = self._used
        if name in used:
            return False
        used.add(name)
        return True

    def part_of(self, owner: str, part: str) -> str:
        """A new name for a part of ``owner``: ``owner.part``, with a number where that is taken."""
        name = f"{owner}.{part}"
        return name if self.reserve(name) else self.fresh(name)

    def fresh(self, hint: str) -> str:
        """A new name made from ``hint``: ``hint`` itself when it is free, else ``hint_1``, ``hint_2``, ..."""
        used, count = self._used, self._counts.get(hint, 0)
        if not count and hint not in used:
            used.add(hint)
            return hint
        while True:
            count += 1
            name = f"{hint}_{count}"
            if name not in used:
                break
        self._counts[hint] = count
        used.add(name)
        return name


def names_in(model: ir.Model) -> set[str]:
    """Every name of a value, node or graph in any scope of ``model``, functions included."""
    found: set[str] = set()
    scopes = scopes_of(model.graph)
    for function in model.functions.values():
        scopes += scopes_of(function.graph)
    for graph, nodes in scopes:
        found.update(graph.initializers.data)
        named = (graph, *graph.inputs, *nodes, *(value for node in nodes for value in node.outputs))
        found.update([each.name or "" for each in named])
    found.discard("")
    return found
