"""Every generated name: interface names are fixed by convention, inner names are fresh in all scopes of a model."""

from __future__ import annotations

import onnx_ir as ir

COTANGENT_SUFFIX = "_grad"


def cotangent_name(name: str) -> str:
    """The interface name of the cotangent of ``name``: a seed for an output, a gradient for a wrt value."""
    return name + COTANGENT_SUFFIX


class Namer:
    """Hands out names that no scope of a model uses, the same ones in the same order every time."""

    def __init__(self, reserved: set[str]) -> None:
        self._used = set(reserved)
        self._counts: dict[str, int] = {}

    @classmethod
    def of_model(cls, model: ir.Model) -> Namer:
        """A namer that avoids every value, node and graph name in ``model``, subgraphs included."""
        return cls(names_in(model))

    def reserve(self, name: str) -> bool:
        """Marks ``name`` as used; false when it already was."""
        if name in self._used:
            return False
        self._used.add(name)
        return True

    def fresh(self, hint: str) -> str:
        """A new name made from ``hint``: ``hint`` itself when it is free, else ``hint_1``, ``hint_2``, ..."""
        if self.reserve(hint):
            return hint
        count = self._counts.get(hint, 0)
        while True:
            count += 1
            name = f"{hint}_{count}"
            if name not in self._used:
                break
        self._counts[hint] = count
        self._used.add(name)
        return name


def names_in(model: ir.Model) -> set[str]:
    """Every name of a value, node or graph in any scope of ``model``."""
    found: set[str] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        found.add(graph.name or "")
        found.update(value.name or "" for value in graph.inputs)
        found.update(graph.initializers)
        for node in graph:
            found.add(node.name or "")
            found.update(value.name or "" for value in node.outputs)
    found.discard("")
    return found
