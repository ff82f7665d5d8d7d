"""What it means to run a control-flow site backwards; the plan chooses one way for each site."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_cfad.graph.walk import subgraphs_of

if TYPE_CHECKING:
    from onnx_cfad.adjoint.cotangents import Cotangents
    from onnx_cfad.adjoint.expr import Builder
    from onnx_cfad.adjoint.sweep import Sweep
    from onnx_cfad.graph.types import Types


Length = int | ir.Value
"""A number of iterations: known, or an int64 scalar that the run computes."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A site made ready for its reverse pass.

    Attributes:
        adjoints: How each of its subgraphs is run backwards, by graph.
        positive: Bodies of Loops that run at least once whenever they are reached.
        replayed: Bodies of loops that the reverse pass runs again.
        lengths: For each such body of a segment whose last run may be shorter: the full length in iterations.
        kept: For such a body: values that the forward pass keeps although they could be computed again.
        copies: Subgraphs that were copied, with their originals.
        guards: Nodes through which values enter a masked branch, with the values when that branch was prepared.
        selections: Nodes that select between the results of masked branches.
        handed_on: Values that masked branches without guards read and make.
        renamed: For each copy: what the values around its original became around it.
    """

    adjoints: Mapping[ir.Graph, Adjoint]
    positive: frozenset[ir.Graph] = frozenset()
    replayed: frozenset[ir.Graph] = frozenset()
    lengths: Mapping[ir.Graph, Length] = dataclasses.field(default_factory=dict[ir.Graph, Length])
    kept: Mapping[ir.Graph, tuple[ir.Value, ...]] = dataclasses.field(
        default_factory=dict[ir.Graph, tuple[ir.Value, ...]]
    )
    copies: Mapping[ir.Graph, ir.Graph] = dataclasses.field(default_factory=dict[ir.Graph, ir.Graph])
    guards: Mapping[ir.Node, ir.Value] = dataclasses.field(default_factory=dict[ir.Node, ir.Value])
    selections: frozenset[ir.Node] = frozenset()
    handed_on: frozenset[ir.Value] = frozenset()
    renamed: Mapping[ir.Graph, Mapping[ir.Value, ir.Value]] = dataclasses.field(
        default_factory=dict[ir.Graph, Mapping[ir.Value, ir.Value]]
    )

    @classmethod
    def merged(cls, parts: Iterable[Prepared]) -> Prepared:
        """All sites together, inner ones first; a copied subgraph is treated as its original."""
        adjoints: dict[ir.Graph, Adjoint] = {}
        lengths: dict[ir.Graph, Length] = {}
        kept: dict[ir.Graph, tuple[ir.Value, ...]] = {}
        positive: set[ir.Graph] = set()
        replayed: set[ir.Graph] = set()
        guards: dict[ir.Node, ir.Value] = {}
        selections: set[ir.Node] = set()
        handed_on: set[ir.Value] = set()
        for part in parts:
            adjoints.update(part.adjoints)
            lengths.update(part.lengths)
            kept.update(part.kept)
            guards.update(part.guards)
            selections |= part.selections
            handed_on |= part.handed_on
            positive |= part.positive
            replayed |= part.replayed
            for copy, original in part.copies.items():
                if original in adjoints:
                    adjoints[copy] = adjoints[original]
                length = lengths.get(original)
                if length is not None:
                    known = part.renamed.get(copy, {})
                    lengths[copy] = length if isinstance(length, int) else known.get(length, length)
                positive |= {copy} if original in positive else set()
                replayed |= {copy} if original in replayed else set()
        return cls(
            adjoints, frozenset(positive), frozenset(replayed), lengths, kept, guards=guards,
            selections=frozenset(selections), handed_on=frozenset(handed_on),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Adjoint(abc.ABC):
    """A way to run a Loop, Scan or If backwards. Final subclasses are frozen dataclasses, so a plan is data."""

    def prepare(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """Rewrites the forward site as the reverse pass needs it, before anything is differentiated.

        Args:
            node: The site.
            types: What is known of shapes.
            builder: Gives names and the opset; nothing is recorded with it.
        """
        del types, builder
        return Prepared(dict.fromkeys(subgraphs_of(node), self))

    @abc.abstractmethod
    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Replaces the cotangents of the node's outputs by those of its inputs and captured values.

        Extends the node in place by what the reverse pass needs to be saved, and records the reverse pass with the
        builder of ``cotangents``.

        Args:
            sweep: Analyses and the adjoints of the sites inside.
            node: The site.
            cotangents: Those of the enclosing region.
            in_loop: The site is inside a loop, where values of differing shape cannot be stacked.
        """
