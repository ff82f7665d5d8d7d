"""The bytes that an adjoint of a loop is expected to keep at the worst moment."""

from __future__ import annotations

import dataclasses

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed, best_length
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.taped import NARROW as NARROW_TAPES
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.adjoint.unrolled import Unrolled
from onnx_cfad.graph.cost import EXACT, NARROW, UNKNOWN_SHAPE, LoopCost, bytes_of
from onnx_cfad.graph.products import dear_products
from onnx_cfad.graph.regions import Site, loop_site
from onnx_cfad.plans.implicit_choice import bytes_of_results
from onnx_cfad.plans.plan import Decision
from onnx_cfad.plans.schedule import Schedule

MANY, OPERATIONS = 1 << 20, 3
"""Bytes from which a tape is large, and operations for each byte of it up to which computing it again is cheap."""


def tape_type(adjoint: Adjoint) -> str:
    """The element type that a tape is narrowed to, as it is written."""
    return adjoint.tape if isinstance(adjoint, (Taped, Checkpointed)) else ""


def widest_of(tape: str) -> int:
    """Bytes of an element of such a tape at most."""
    return EXACT if NARROW_TAPES[tape] is None else NARROW


def taped_bytes(taped: Taped, cost: LoopCost) -> int:
    """Bytes of a tape of all iterations."""
    return cost.trips * (cost.taped_carry if taped.keep else cost.iteration)


def kept_products(site: Site) -> int:
    """Bytes of an iteration's products that are dear to compute again."""
    return sum(map(bytes_of, dear_products(loop_site(site.node).body)))


def bytes_kept(adjoint: Adjoint, cost: LoopCost, site: Site, unknown: int = UNKNOWN_SHAPE) -> int | None:
    """Bytes that ``adjoint`` keeps of the loop; None where nothing is taped."""
    if isinstance(adjoint, Unrolled):
        return None
    if isinstance(adjoint, Implicit):
        return bytes_of_results(site, unknown)
    if isinstance(adjoint, Checkpointed):
        segment = adjoint.segment or best_length(max(cost.trips, 1))
        kept = cost.trips * kept_products(site) if adjoint.keep else 0
        return kept + Schedule(cost.trips, segment, adjoint.levels).peak_bytes(cost.carry, cost.iteration)
    return taped_bytes(adjoint if isinstance(adjoint, Taped) else Taped(), cost)


def with_certain(decision: Decision, certain: int | None, *, unsized: bool) -> Decision:
    """``decision``, which says what is certain of its bytes where sizes are not known."""
    counted = unsized and decision.reason != "as asked"
    note = f"; what has no known shape counts {UNKNOWN_SHAPE:,} bytes" if counted else ""
    return dataclasses.replace(decision, certain=certain, reason=decision.reason + note)
