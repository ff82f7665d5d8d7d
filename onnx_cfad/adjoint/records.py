"""What the forward pass recorded so that a replay decides nothing again: trip counts, branch choices, random draws.

A recomputed value need not be bit-equal to the first one (ONNX Runtime's packed and plain kernels round differently),
so a predicate near its threshold could flip, and a random operator would draw again.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import LoopSite, branch_site, is_branch, is_loop, loop_site
from onnx_cfad.graph.walk import subgraphs_of


@dataclasses.dataclass(frozen=True)
class Records:
    """The records made so far.

    Attributes:
        counters: For each body of a Loop that a condition may end: the value that holds its trip count.
        tapes: For each body of a loop that will be replayed: its recorded values with their stacked tapes.
    """

    counters: dict[ir.Graph, ir.Value] = dataclasses.field(default_factory=dict)
    tapes: dict[ir.Graph, dict[ir.Value, ir.Value]] = dataclasses.field(default_factory=dict)

    def tapes_of(self, node: ir.Node) -> dict[ir.Value, ir.Value]:
        """The recorded values of the body of a loop node, with their tapes."""
        return self.tapes.get(loop_site(node).body, {}) if is_loop(node) else {}

    def counter_of(self, node: ir.Node) -> ir.Value | None:
        """The recorded trip count of a loop node."""
        return self.counters.get(loop_site(node).body) if is_loop(node) else None

    def values_to_record(self, site: LoopSite) -> list[ir.Value]:
        """The decisions and draws of one iteration of ``site``, those recorded by loops inside it included."""
        found: dict[ir.Value, None] = {}
        for node in site.body:
            if is_branch(node):
                predicate = branch_site(node).predicate
                if predicate.graph is site.body and not predicate.is_initializer():
                    found.setdefault(predicate)
            elif is_loop(node):
                counter = self.counter_of(node)
                found.update(dict.fromkeys((*self.tapes_of(node).values(), *([counter] if counter else ()))))
            elif not subgraphs_of(node) and not is_pure(node):
                found.update(dict.fromkeys(node.outputs))
        return [value for value in found if value.graph is site.body]
