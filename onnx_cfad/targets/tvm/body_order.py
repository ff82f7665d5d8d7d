"""In which order the bodies of a host program are compiled, and which are left to the run that meets them first.

What runs most often on the sample inputs goes first. Among the bodies of branches a profile decides, where there is
one: they keep the places that they have together, the most often taken branch in the first of these. Bodies of a branch
that no run of the profile took are left to their first use, as are those that nothing is known of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnx_cfad.targets.branch_order import BranchOrder
from onnx_cfad.targets.tvm.hostprog import Block, Branch, Call, Repeat
from onnx_cfad.targets.tvm.partition import Partition
from onnx_cfad.targets.tvm.signatures import Signature
from onnx_cfad.targets.tvm.specialise import Met, declared


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A body that is compiled ahead of any run.

    Attributes:
        name: The body.
        side: The innermost branch that it is in, such as ``main/if_0/then``; "" for none.
        taken: How often that branch was taken in the profile; None where nothing says so.
        calls: Its calls in a run of the sample inputs.
        signatures: What it is compiled for, the most often met first.
    """

    name: str
    side: str
    taken: int | None
    calls: int
    signatures: tuple[Signature, ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The bodies that are compiled ahead, in order, and those that their first use compiles."""

    ahead: tuple[Scheduled, ...]
    on_first_use: tuple[str, ...]


def schedule(parts: Partition, met: Mapping[str, Met], order: BranchOrder) -> Schedule:
    """When each body is compiled.

    Args:
        parts: The program with its bodies.
        met: What its bodies met in a run of the sample inputs.
        order: What is known of its branches.
    """
    sides = dict(_sides(parts.program.main, (), parts.sites))
    entries = [_scheduled(name, sides[name], parts.bodies[name], met.get(name), order) for name in parts.bodies]
    ready = [entry for entry in entries if entry.signatures and order.cold.isdisjoint(sides[entry.name])]
    by_calls = sorted(ready, key=lambda entry: -entry.calls)
    rank = {side: number for number, side in enumerate(order.hot)}
    places = [number for number, entry in enumerate(by_calls) if entry.side in rank]
    ranked = sorted((by_calls[number] for number in places), key=lambda entry: rank[entry.side])
    for number, entry in zip(places, ranked, strict=True):
        by_calls[number] = entry
    known = {entry.name for entry in by_calls}
    return Schedule(tuple(by_calls), tuple(name for name in parts.bodies if name not in known))


def _sides(block: Block, around: tuple[str, ...], sites: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each body with the sides of branches that it is in, outermost first."""
    for step in block.steps:
        if isinstance(step, Call):
            yield step.body, around
        elif isinstance(step, Repeat):
            yield from _sides(step.body, around, sites)
        elif isinstance(step, Branch):
            path = sites.get(step.site, "")
            for side, inner in (("then", step.then), ("else", step.otherwise)):
                yield from _sides(inner, (*around, f"{path}/{side}") if path else around, sites)


def _scheduled(name: str, sides: tuple[str, ...], body: ir.Model, met: Met | None, order: BranchOrder) -> Scheduled:
    side = sides[-1] if sides else ""
    if met is not None:
        signatures = tuple(sorted(met.counts, key=lambda signature: -met.counts[signature]))
    else:
        signature = declared(body) if side in order.hot else None
        signatures = () if signature is None else (signature,)
    return Scheduled(name, side, order.counts.get(side), 0 if met is None else met.calls, signatures)
