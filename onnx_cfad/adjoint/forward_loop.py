"""Forward mode through a Loop or Scan: tangents are carried, sliced and stacked beside the values; there is no tape.

A carry has a tangent where the activity, a fixed point over the iterations, says that a derivative passes; all other
tangents are zero in every iteration and are not there. Cost: |active carries| more carry, and N times the tangents of
one iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.extend import returned
from onnx_cfad.graph.regions import Carry, LoopSite, ScanInput, ScanOutput, loop_site

if TYPE_CHECKING:
    from onnx_cfad.adjoint.forward_sweep import ForwardSweep


@dataclasses.dataclass(frozen=True)
class _Active:
    """The carries, sliced inputs and stacked outputs of a loop that have a tangent."""

    carries: Sequence[Carry]
    inputs: Sequence[ScanInput]
    outputs: Sequence[ScanOutput]


def push_through_loop(sweep: ForwardSweep, node: ir.Node, builder: Builder) -> ir.Node:
    """Replaces the loop by one that computes tangents too, and gives it; ``builder`` records what enters it."""
    site = loop_site(node)
    active = _active(sweep, site, builder)
    initials = [sweep.tangent_or_zero(carry.initial, builder).value for carry in active.carries]
    sources = [sweep.tangents[source.source] for source in active.inputs]
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, builder.nodes)
    builder.nodes = []
    entries = [_entry(sweep, carry.entry, builder) for carry in active.carries]
    slices = [_entry(sweep, source.slice, builder) for source in active.inputs]
    inner = builder.child()
    sweep.run(site.body, inner)
    site = loop_site(node)  # what the body returns may be the result of an inner loop, which was replaced
    active = _active(sweep, site, builder)
    made = (*(carry.exit for carry in active.carries), *(output.element for output in active.outputs))
    results = [sweep.tangent_or_zero(value, inner) for value in made]
    sweep.close(site.body, inner)
    values: list[ir.Value] = []
    for result in results:
        values.append(returned(site.body, result.value, builder.namer, copy=result.value in values))
    new = _extended(site, active, initials, sources)
    _extend_body(site, entries, slices, values)
    return _replace(sweep, site, active, new, builder)


def _active(sweep: ForwardSweep, site: LoopSite, builder: Builder) -> _Active:
    is_active = sweep.activity.is_active
    return _Active(
        [c for c in site.carries if any(map(is_active, (c.entry, c.exit, c.final)))],
        [s for s in site.inputs if is_active(s.slice) and sweep.tangent(s.source, builder) is not None],
        [o for o in site.outputs if is_active(o.stacked)],
    )


def _entry(sweep: ForwardSweep, value: ir.Value, builder: Builder) -> ir.Value:
    """A fresh body input for the tangent of a body input."""
    entry = builder.input(f"{value.name}.t", value.type, value.shape).value
    sweep.tangents[value] = entry
    return entry


def _extend_body(
    site: LoopSite, entries: Sequence[ir.Value], slices: Sequence[ir.Value], values: Sequence[ir.Value]
) -> None:
    body, count = site.body, len(site.carries)
    first = count + (0 if site.is_scan else 2)
    for offset, entry in enumerate(entries):
        body.inputs.insert(first + offset, entry)
    body.inputs.extend(slices)
    first = count + (0 if site.is_scan else 1)
    for offset, value in enumerate(values[: len(entries)]):
        body.outputs.insert(first + offset, value)
    body.outputs.extend(values[len(entries) :])


def _extended(site: LoopSite, active: _Active, initials: Sequence[ir.Value], sources: Sequence[ir.Value]) -> ir.Node:
    """The loop with further inputs and outputs; carries come before what is sliced or stacked."""
    node, count = site.node, len(site.carries)
    first = count if site.is_scan else count + 2
    given = [*node.inputs, *[None] * (first - len(node.inputs))]
    return ir.Node(
        node.domain,
        node.op_type,
        [*given[:first], *initials, *given[first:], *sources],
        _attributes(site, active),
        num_outputs=len(node.outputs) + len(active.carries) + len(active.outputs),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )


def _attributes(site: LoopSite, active: _Active) -> list[ir.Attr]:
    attributes = dict(site.node.attributes)
    if not site.is_scan:
        return list(attributes.values())
    attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(site.inputs) + len(active.inputs))
    for side, own, more in (("input", site.inputs, active.inputs), ("output", site.outputs, active.outputs)):
        every = [*own, *more]
        for name, numbers in (("axes", [x.axis for x in every]), ("directions", [int(x.reverse) for x in every])):
            if any(numbers):
                attributes[f"scan_{side}_{name}"] = ir.AttrInt64s(f"scan_{side}_{name}", numbers)
            else:
                attributes.pop(f"scan_{side}_{name}", None)
    return list(attributes.values())


def _replace(sweep: ForwardSweep, site: LoopSite, active: _Active, new: ir.Node, builder: Builder) -> ir.Node:
    """Puts ``new`` in place of the loop; the tangents of its results are known."""
    node, count, more = site.node, len(site.carries), len(active.carries)
    old = list(node.outputs)
    stacked = len(old) - count
    finals, tangents = new.outputs[:count], [*new.outputs[count : count + more], *new.outputs[count + more + stacked :]]
    kept = [*finals, *new.outputs[count + more : count + more + stacked]]
    primal = [*(carry.final for carry in active.carries), *(output.stacked for output in active.outputs)]
    positions = [next(k for k, v in enumerate(old) if v is value) for value in primal]
    for value, tangent in zip(primal, tangents, strict=True):
        tangent.name, tangent.type, tangent.shape = builder.namer.fresh(f"{value.name}.t"), value.type, value.shape
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], old, kept)
    for before, after in zip(old, kept, strict=True):
        sweep.activity.replaced(before, after)
        if before in sweep.cut:
            sweep.cut.add(after)
    for position, tangent in zip(positions, tangents, strict=True):
        sweep.tangents[kept[position]] = tangent
    return new
