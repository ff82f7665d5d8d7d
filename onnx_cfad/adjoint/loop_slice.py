"""The part of a loop that some of its outputs depend on, and a copy of that part alone.

A replay computes the residuals of a segment again; carries and nodes that do not lead to them are left out, and so are
the checkpoints these would need. What the forward pass recorded (draws, choices, trip counts) is read, not made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.records import Records
from onnx_cfad.adjoint.replay import copy_node
from onnx_cfad.graph.regions import Carry, LoopSite, ScanInput, ScanOutput, captured_by, loop_site
from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.names import Namer


@dataclasses.dataclass(frozen=True)
class LoopSlice:
    """What a loop needs to make some of its outputs.

    Attributes:
        site: The loop.
        carries: The carries that take part.
        inputs: The sliced inputs that take part (at least one where the loop is a Scan: it sets the trip count).
        outputs: The stacked outputs that are wanted.
        nodes: The body nodes that take part, in order.
        recorded: Body values that are read from a record instead of being made: value -> its stacked record.
        exact: The trip count is given; the loop's own condition plays no part.
    """

    site: LoopSite
    carries: tuple[Carry, ...]
    inputs: tuple[ScanInput, ...]
    outputs: tuple[ScanOutput, ...]
    nodes: tuple[ir.Node, ...]
    recorded: Mapping[ir.Value, ir.Value]
    exact: bool

    def made(self) -> list[ir.Value]:
        """The outputs of the loop that the slice makes."""
        return [*(c.final for c in self.carries), *(o.stacked for o in self.outputs)]

    def outer_values(self) -> list[ir.Value]:
        """What the slice reads from outside the loop, records included, in order."""
        entering = [*(c.initial for c in self.carries), *(s.source for s in self.inputs), *self.recorded.values()]
        decisions = [] if self.exact else [v for v in (self.site.limit, self.site.start) if v is not None]
        read = [v for node in self.nodes for v in (*node.inputs, *captured_by(node)) if v is not None]
        body = self.site.body
        captured = [v for v in read if v.graph is not body and not _is_inside(v, body)]
        return list(dict.fromkeys([*entering, *decisions, *captured]))


def slice_loop(site: LoopSite, wanted: Iterable[ir.Value], records: Records) -> LoopSlice:
    """Finds the part of the loop that its outputs ``wanted`` depend on.

    Args:
        site: The loop.
        wanted: Outputs of the loop node.
        records: What the forward pass recorded: values that need not be made, and trip counts.
    """
    recorded = records.tapes_of(site.node)
    exact = site.is_scan or records.counter_of(site.node) is not None
    targets = set(wanted)
    outputs = tuple(o for o in site.outputs if o.stacked in targets)
    needed = {o.element for o in outputs}
    if not exact and site.proceed is not None:
        needed.add(site.proceed)
    carries = {k for k, c in enumerate(site.carries) if c.final in targets}
    while True:
        roots = needed | {site.carries[k].exit for k in carries}
        reached, nodes = _reach(site.body, roots, recorded, records)
        more = {k for k, c in enumerate(site.carries) if c.entry in reached or c.exit in targets} - carries
        if not more:
            break
        carries |= more
    inputs = tuple(s for s in site.inputs if s.slice in reached) or site.inputs[:1]
    used = {value: tape for value, tape in recorded.items() if value in reached}
    return LoopSlice(site, tuple(site.carries[k] for k in sorted(carries)), inputs, outputs, tuple(nodes), used, exact)


def copy_slice(
    part: LoopSlice, trips: ir.Value | None, mapping: dict[ir.Value, ir.Value], records: Records, namer: Namer
) -> ir.Node:
    """A copy of the loop that makes only what ``part`` holds; its outputs are entered into ``mapping``.

    Args:
        part: The slice.
        trips: The trip count (in the new scope) when the slice is exact and the loop is a Loop.
        mapping: Outer values in the new scope.
        records: What the forward pass recorded, for loops inside.
        namer: For new names.
    """
    site, inner = part.site, dict(mapping)
    entries = [_entry(c.entry, inner, namer) for c in part.carries]
    slices = [_entry(s.slice, inner, namer) for s in part.inputs]
    tapes = [(tape, _entry(value, inner, namer)) for value, tape in part.recorded.items()]
    head = [] if site.is_scan else [_entry(v, inner, namer) for v in (site.index, site.predicate) if v is not None]
    initializers = [_constant(v, inner, namer) for v in site.body.initializers.values()]
    nodes: list[ir.Node] = []
    if not site.is_scan:
        nodes += [
            _read(mapping.get(tape, tape), head[0], entry, inner, value, namer)
            for (tape, entry), value in zip(tapes, part.recorded, strict=True)
        ]
    nodes += [_copy_inside(node, inner, records, namer) for node in part.nodes]
    results = [inner.get(v, v) for v in (*(c.exit for c in part.carries), *(o.element for o in part.outputs))]
    if not site.is_scan:
        going = head[1] if part.exact or site.proceed is None else inner.get(site.proceed, site.proceed)
        results = [going, *results]
    results = _made_once(results, nodes, namer)
    inputs = [*head, *entries, *slices, *([entry for _, entry in tapes] if site.is_scan else [])]
    body = ir.Graph(
        inputs, results, nodes=nodes, initializers=initializers, name=namer.fresh(f"replay/{site.body.name}")
    )
    node = _node(part, body, trips, mapping, [mapping.get(t, t) for t, _ in tapes], namer)
    for old, new in zip(
        (*(c.final for c in part.carries), *(o.stacked for o in part.outputs)), node.outputs, strict=True
    ):
        new.name, new.type, new.shape = namer.fresh(f"replay/{old.name}"), old.type, old.shape
        mapping[old] = new
    return node


def _copy_inside(node: ir.Node, inner: dict[ir.Value, ir.Value], records: Records, namer: Namer) -> ir.Node:
    """A copy of a body node; a loop inside reads its own records."""
    tapes = records.tapes_of(node)
    if not tapes or any(tape not in inner for tape in tapes.values()):
        return copy_node(node, inner, namer)
    counter = records.counter_of(node)
    part = slice_loop(loop_site(node), [o for o in node.outputs if o not in inner], records)
    return copy_slice(part, None if counter is None else inner.get(counter, counter), inner, records, namer)


def _node(
    part: LoopSlice, body: ir.Graph, trips: ir.Value | None, mapping: dict[ir.Value, ir.Value],
    records: Sequence[ir.Value], namer: Namer,
) -> ir.Node:  # fmt: skip
    site = part.site
    initial = [mapping.get(c.initial, c.initial) for c in part.carries]
    attributes = [ir.AttrGraph("body", body)]
    if site.is_scan:
        sources = [mapping.get(s.source, s.source) for s in part.inputs]
        values: list[ir.Value | None] = [*initial, *sources, *records]
        attributes.append(ir.AttrInt64("num_scan_inputs", len(sources) + len(records)))
        attributes += _layout("input", [*((s.axis, s.reverse) for s in part.inputs), *[(0, False)] * len(records)])
        attributes += _layout("output", [(o.axis, o.reverse) for o in part.outputs])
    elif part.exact:
        values = [trips, None, *initial]
    else:
        decisions = [None if v is None else mapping.get(v, v) for v in (site.limit, site.start)]
        values = [*decisions, *initial]
    count = len(part.carries) + len(part.outputs)
    name = namer.fresh(f"replay/{site.node.name or site.node.op_type}")
    return ir.Node("", site.node.op_type, values, attributes, num_outputs=count, name=name)


def _layout(kind: str, entries: Sequence[tuple[int, bool]]) -> list[ir.Attr]:
    axes, back = [axis for axis, _ in entries], [int(reverse) for _, reverse in entries]
    found = [ir.AttrInt64s(f"scan_{kind}_axes", axes)] if any(axes) else []
    return [*found, ir.AttrInt64s(f"scan_{kind}_directions", back)] if any(back) else found


def _read(
    tape: ir.Value, index: ir.Value, entry: ir.Value, inner: dict[ir.Value, ir.Value], value: ir.Value, namer: Namer
) -> ir.Node:
    """A Loop reads a record by its iteration number."""
    node = ir.Node("", "Gather", [tape, index], [ir.AttrInt64("axis", 0)], name=namer.fresh("replay/record"))
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = (
        namer.fresh("replay/record.out"),
        entry.type,
        entry.shape,
    )
    inner[value] = node.outputs[0]
    return node


def _entry(value: ir.Value, inner: dict[ir.Value, ir.Value], namer: Namer) -> ir.Value:
    new = ir.Value(name=namer.fresh(f"replay/{value.name}"), type=value.type, shape=value.shape)
    inner[value] = new
    return new


def _constant(value: ir.Value, inner: dict[ir.Value, ir.Value], namer: Namer) -> ir.Value:
    new = _entry(value, inner, namer)
    new.const_value = value.const_value
    return new


def _made_once(results: list[ir.Value], nodes: list[ir.Node], namer: Namer) -> list[ir.Value]:
    """Results that are inputs, outer values or repeated go through an Identity: a Scan body must not return those."""
    made = {output for node in nodes for output in node.outputs}
    found: list[ir.Value] = []
    for value in results:
        if value not in made or value in found:
            copy = ir.Node("", "Identity", [value], name=namer.fresh("replay/Identity"))
            copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
            copy.outputs[0].shape = value.shape
            nodes.append(copy)
            found.append(copy.outputs[0])
        else:
            found.append(value)
    return found


def _reach(
    body: ir.Graph, roots: set[ir.Value], recorded: Mapping[ir.Value, ir.Value], records: Records
) -> tuple[set[ir.Value], list[ir.Node]]:
    """The body values that ``roots`` depend on, and the nodes that make them, in order; records are leaves."""
    reached, nodes = set(roots), []
    for node in reversed(body):
        if not any(o in reached and o not in recorded for o in node.outputs):
            continue
        nodes.append(node)
        reached.update(v for v in (*node.inputs, *captured_by(node)) if v is not None)
        counter = records.counter_of(node)
        reached.update(v for v in (*records.tapes_of(node).values(), counter) if v is not None and v in recorded)
    return reached, nodes[::-1]


def _is_inside(value: ir.Value, body: ir.Graph) -> bool:
    graph = value.graph
    return graph is not None and any(graph is inner for inner in graphs_of(body)[1:])
