"""Bytes per iteration of loops: what a carry holds, and what a full tape of an iteration may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.regions import LoopSite, branch_site, is_branch, is_loop, loop_site
from onnx_cfad.graph.trips import trip_count

SYMBOLIC_DIM = 1  # elements counted along a dimension that only the run knows: a plan gives way to certain sizes only
UNKNOWN_SHAPE = 1 << 12  # bytes that a choice counts for a value of unknown rank: 1,024 elements of float32
EXACT, NARROW = 16, 2  # bytes that a tape takes of one element at most: of the widest type, and of float16 or bfloat16

_COPIES = frozenset(
    (
        "Identity",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Transpose",
        "Cast",
        "Constant",
        "ConstantOfShape",
        "Shape",
    )
    + ("Gather", "Slice", "Concat", "Split", "Expand", "Add", "Sub", "Neg", "Sum", "Size", "Range")
    + ("MatMul", "Gemm", "Conv", "Einsum")  # linear: their reverse pass reads operands, not results
)


@dataclasses.dataclass(frozen=True)
class LoopCost:
    """The sizes that a plan weighs.

    Attributes:
        trips: Iterations, known or assumed.
        assumed: The trip count is an assumption.
        carry: Bytes of the floating-point carries.
        taped_carry: Bytes that a tape takes of these, which may be narrower.
        iteration: Bytes that a full tape keeps of one iteration, loops inside included (an upper estimate).
    """

    trips: int
    assumed: bool
    carry: int
    taped_carry: int
    iteration: int


Measured = Mapping[ir.Node, int]
"""Iterations of loops, from a profile."""

Planned = Mapping[ir.Node, int]
"""Bytes that loops keep as they are planned, for one execution."""


def loop_cost(
    node: ir.Node,
    assumed_trips: int,
    measured: Measured | None = None,
    unknown: int = UNKNOWN_SHAPE,
    widest: int = EXACT,
    inside: Planned | None = None,
) -> LoopCost:
    """The cost of the loop ``node``.

    Args:
        node: A Loop or Scan.
        assumed_trips: Iterations of a loop of which nothing is known.
        measured: Iterations of loops that a profile knows.
        unknown: Bytes that a value of unknown shape counts as; 0 for what is certain.
        widest: Bytes of an element of the tape at most; carries kept as checkpoints are exact.
        inside: What loops inside keep, where it is no full tape.
    """
    site, measured = loop_site(node), measured or {}
    trips, assumed = _trips(site, assumed_trips)
    if assumed and node in measured:
        trips, assumed = measured[node], False
    carries = [c.entry for c in site.carries if carries_derivative(c.entry)]
    carry = sum(bytes_of(entry, unknown) for entry in carries)
    taped = sum(bytes_of(entry, unknown, widest) for entry in carries)
    residuals = tape_bytes(site.body, assumed_trips, measured, unknown, widest, inside)
    return LoopCost(trips, assumed, carry, taped, taped + residuals)


def bytes_of(value: ir.Value, unknown: int = UNKNOWN_SHAPE, widest: int = EXACT) -> int:
    """Bytes of a tensor, or of one element of a list.

    Args:
        value: A dimension that is no number counts as ``SYMBOLIC_DIM``.
        unknown: Bytes where the rank is unknown, of which a narrow tape takes half.
        widest: Bytes of an element at most.
    """
    if value.shape is None or value.dtype is None:
        return unknown if widest == EXACT else unknown // 2
    count = int(np.prod([d if isinstance(d, int) else SYMBOLIC_DIM for d in value.shape.dims], dtype=np.int64))
    return int(np.ceil(count * min(value.dtype.itemsize, widest)))


def _trips(site: LoopSite, assumed: int) -> tuple[int, bool]:
    count = trip_count(site)
    if count.static is not None:
        return count.static, False
    return (min(count.bound, assumed) if count.bound is not None else assumed), True


def tape_bytes(
    nodes: Iterable[ir.Node],
    assumed_trips: int,
    measured: Measured | None = None,
    unknown: int = UNKNOWN_SHAPE,
    widest: int = EXACT,
    inside: Planned | None = None,
) -> int:
    """Bytes of what a reverse pass over ``nodes`` may read, at most, with elements of at most ``widest`` bytes."""
    total = 0
    for node in nodes:
        if inside is not None and node in inside:
            total += inside[node]
        elif is_loop(node):
            inner = loop_cost(node, assumed_trips, measured, unknown, widest, inside)
            total += inner.trips * inner.iteration
        elif is_branch(node):
            branches = branch_site(node).branches
            total += max(tape_bytes(b, assumed_trips, measured, unknown, widest, inside) for b in branches)
        elif node.op_type not in _COPIES:
            total += sum(bytes_of(output, unknown, widest) for output in node.outputs if carries_derivative(output))
    return total
