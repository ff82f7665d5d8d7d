"""A loop run backwards from checkpoints: only the carries at segment boundaries are kept.

Other names: segmented or two-level checkpointing, recursive checkpointing with ``levels`` > 2, rematerialisation. A
segment is replayed from its checkpoint with a full tape of its own, then swept. Memory O(|carry| * N / S + |residuals|
* S) for N trips in segments of S, time one more forward pass for each level above the first (Griewank and Walther,
"Evaluating Derivatives", chapter 12; Chen et al., https://arxiv.org/abs/1604.06174).

Trip counts and branch choices are recorded by the forward pass; a replay decides nothing again.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.batching import batch_slices
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.reversal import Reversal
from onnx_cfad.adjoint.scan_loop import scan_to_loop
from onnx_cfad.adjoint.segments import LONGEST_SEQUENCE, SHORTEST, Segmented, segment_loop, segment_scan
from onnx_cfad.adjoint.sweep import Sweep
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.regions import LoopSite, label, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.types import Types
from onnx_cfad.options import LONGEST, MOST_LEVELS
from onnx_cfad.rewriters.scan_form import loop_to_scan

KEPT = ("", "products")
"""What may be kept of an iteration beside the carries."""


@dataclasses.dataclass(frozen=True)
class Checkpointed(Adjoint):
    """Carries at segment boundaries are kept; each segment is replayed and swept.

    Attributes:
        segment: Iterations in a segment of the innermost level; 0 for about the root of the trip count, found by the
            run where the model does not fix it (two levels only).
        levels: 2 for segments, 3 for segments of segments, ...
        tape: Element type of the tape inside a segment, as in ``Taped``; checkpoints are always exact.
        keep: "products" to keep the results of matrix products that take many operations for each byte
            (``graph/products.py``), so that a replay reads them; "" to keep the carries alone.
    """

    segment: int = 0
    levels: int = 2
    tape: str = ""
    keep: str = ""

    def __post_init__(self) -> None:
        Taped(self.tape)  # refuses what is no tape
        if self.keep not in KEPT:
            raise PlanError(f"keep '{self.keep}'", "expected products", "Leave it out to keep the carries alone.")
        if not (0 <= self.segment <= LONGEST and 2 <= self.levels <= MOST_LEVELS):
            found = f"segment={self.segment}, levels={self.levels}"
            raise PlanError("checkpointed", found, f"Use a segment up to {LONGEST:,} and 2 to {MOST_LEVELS} levels.")
        if self.segment == 0 and self.levels > 2:
            found = f"segment=0, levels={self.levels}"
            raise PlanError("checkpointed", found, "Use segment >= 1, or segment 0 with two levels.")

    def prepare(self, node: ir.Node, types: Types, builder: Builder) -> Prepared:
        """See ``Adjoint.prepare``: nests the loop one level deeper for each level above the first."""
        site = loop_site(node)
        count = trip_count(site)
        known = count.static if not count.conditional else None
        known = known or rows_read(site)
        if self.segment == 0 and known is not None:
            length = min(best_length(known), _longest(site, types) or known)
            return dataclasses.replace(self, segment=length).prepare(node, types, builder)
        size = self.segment ** (self.levels - 1)
        if count.static is not None and count.static <= max(self.segment, 1):
            return Taped(self.tape).prepare(node, types, builder)
        if count.static is not None and count.static <= size:
            return dataclasses.replace(self, levels=self.levels - 1).prepare(node, types, builder)
        segmented = _segmented(site, size, types, builder)
        below = dataclasses.replace(self, levels=self.levels - 1) if self.levels > 2 else Taped(self.tape)
        inner = segmented.inner if self.levels > 2 else batch_slices(segmented.inner, builder)
        prepared = below.prepare(inner, types, builder)
        outer = segmented.outer.attributes["body"].as_graph()
        again = frozenset(prepared.adjoints)  # all levels below this one
        kept = dict(prepared.kept)
        if self.keep and self.levels == 2:
            body = loop_site(inner).body
            kept[body] = tuple(dear_products(body))
        uneven = dict.fromkeys(segmented.positive, segmented.length)
        return Prepared(
            {**prepared.adjoints, outer: Replayed()},
            prepared.positive | segmented.positive,
            again,
            {**prepared.lengths, **uneven},
            kept,
        )

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Never reached: a prepared loop is run backwards by the adjoints of its levels."""
        del sweep, cotangents, in_loop
        raise AssertionError(f"{label(node)} was not prepared")


@dataclasses.dataclass(frozen=True)
class Replayed(Adjoint):
    """The loop over segments: its carries are taped, all else of an iteration is computed again from them."""

    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """See ``Adjoint.reverse``."""
        del in_loop
        Reversal(sweep, node, cotangents, carries_only=True).run()


def best_length(trips: int) -> int:
    """About the root of half the trip count, a divisor of it where there is one near."""
    ideal = max(SHORTEST, math.isqrt(trips // 2))
    near = [s for s in range(max(1, ideal // 2), min(2 * ideal, trips) + 1) if trips % s == 0]
    return min(near, key=lambda s: abs(math.log(s / ideal))) if near else max(1, min(ideal, trips))


def rows_read(site: LoopSite) -> int | None:
    """The fewest rows of an outer tensor that the loop reads by its iteration number: it cannot run more often."""
    found = [
        row.inputs[0].shape[row.attributes.get_int("axis", 0)]
        for row in site.rows(leading=False)
        if row.inputs[0] is not None and row.inputs[0].shape is not None
    ]
    return min((dim for dim in found if isinstance(dim, int) and dim > 0), default=None)


def _segmented(site: LoopSite, size: int, types: Types, builder: Builder) -> Segmented:
    count = trip_count(site)
    divides = size > 0 and not count.conditional and count.static is not None and count.static % size == 0
    if divides and (site.is_scan or all(types.is_uniform(c.entry, site.body) for c in site.carries)):
        assert count.static is not None
        node = site.node if site.is_scan else loop_to_scan(site, count.static, builder.namer, slice_rows=True)
        return segment_scan(node, size, count.static, builder)
    node = scan_to_loop(site.node, builder) if site.is_scan else site.node
    return segment_loop(node, size, builder, conditional=count.conditional, longest=_longest(site, types))


def kept_in_sequences(site: LoopSite, types: Types) -> list[ir.Value]:
    """The carries of which a tape is a sequence: their shape varies, or they are sequences themselves."""
    entries = [c.entry for c in site.carries if carries_derivative(c.entry)]
    return [] if site.is_scan else [v for v in entries if not types.is_uniform(v, site.body)]


def _longest(site: LoopSite, types: Types) -> int | None:
    return LONGEST_SEQUENCE if kept_in_sequences(site, types) else None
