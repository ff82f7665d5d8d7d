"""Sequences whose elements have one static shape become tensors, a row for each, for what takes tensors alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import Carry, LoopSite, branch_site, is_branch, label, loop_site
from onnx_cfad.graph.sequence_groups import SequenceGroup, sequence_groups
from onnx_cfad.graph.sequence_growth import growth, insertions, loses, replaced
from onnx_cfad.graph.sequence_shapes import piece_length
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.sequence_rows import RowOperators, Rows

_MOST_TRIPS = 2**31


class PreallocateSequencesPass(ir.passes.InPlacePass):
    """Replaces every group of sequences that can be tensors (see ``sequence_groups``), at any depth.

    Given::

        none = SequenceEmpty ()
        last, all = Loop (N, c, x, none) <body (i, go, h, seq(float[3]) q) {
            e = SequenceAt (q, k)   ...   r = SequenceInsert (q, next) } -> next, r>
        y = SequenceAt (all, j)

    Result, with n the number of elements so far::

        last, all, m = Loop (N, c, x, zeros of [N, 3], 0) <body (i, go, h, float[N, 3] q, n) {
            e = Gather (q, k)   ...   r = ScatterND (q, n, next)   p = n + 1 } -> next, r, p>
        y = Gather (all, j)

    A loop that only collects, and reads none of the elements, stacks them as a scan output instead, which copies
    nothing. An element is put or erased at another place by moving the rows behind it. Values are equal bit for bit. A
    read outside of a sequence, which is an error in ONNX Runtime, may give another row. Types have been inferred.

    Cost: an insertion copies all rows, in time and memory O(trips * size of an element).

    Args:
        most_bytes: Rows that a loop may carry; a group of more stays, since a loop of N iterations copies N^2 rows.
            None for any.
        computed: Whether a loop may carry rows whose number the run decides before it begins.

    Attributes:
        stays: Why groups stay sequences, in graph order.
    """

    def __init__(self, most_bytes: int | None = None, *, computed: bool = True) -> None:
        super().__init__()
        self._most_bytes, self._computed = most_bytes, computed
        self.stays: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites what can be."""
        groups = sequence_groups(model)
        stays = {k: group.reason for k, group in enumerate(groups) if group.reason}
        while len(stays) < len(groups) and (found := self._refused(model.clone(), stays)) is not None:
            stays[found.group] = found.reason
        self.stays = [stays[k] for k in sorted(stays)]
        changed = len(stays) < len(groups)
        if changed:
            self._convert(model, stays)
        return ir.passes.PassResult(model, changed)

    def _refused(self, model: ir.Model, stays: Mapping[int, str]) -> _StaysError | None:
        """What is in the way, which shows only when the loops around it have been rewritten; None for nothing."""
        try:
            self._convert(model, stays)
        except _StaysError as error:
            return error
        return None

    def _convert(self, model: ir.Model, stays: Mapping[int, str]) -> None:
        groups = {k: group for k, group in enumerate(sequence_groups(model)) if k not in stays}
        _Conversion(model, groups, self._may_carry).run()

    def _may_carry(self, most: int | None) -> bool:
        """Whether a loop may carry rows of so many bytes; None where the run decides."""
        return self._computed if most is None else self._most_bytes is None or most <= self._most_bytes


class _StaysError(Exception):
    """A group cannot be tensors."""

    def __init__(self, group: int, reason: str) -> None:
        super().__init__(reason)
        self.group, self.reason = group, reason


class _Conversion:
    """Rewrites in graph order; ``rows`` has what stands for the sequences so far."""

    def __init__(
        self, model: ir.Model, groups: Mapping[int, SequenceGroup], may_carry: Callable[[int | None], bool]
    ) -> None:
        self.main, self.namer, self.may_carry = model.graph, Namer.of_model(model), may_carry
        self.groups = {value: k for k, group in groups.items() for value in group.members}
        self.shapes = {k: group.shape for k, group in groups.items()}
        self.rows: dict[ir.Value, Rows] = {}
        self.old: list[ir.Node] = []

    def run(self) -> None:
        self.graph(self.main)
        for node in reversed(self.old):
            graph = node.graph
            assert graph is not None
            graph.remove(node, safe=True)

    def graph(self, graph: ir.Graph) -> None:
        for node in list(graph):
            if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
                self.loop(loop_site(node), graph)
            elif is_branch(node):
                self.branch(node)
            elif subgraphs_of(node):
                for inner in subgraphs_of(node):
                    self.graph(inner)
            elif any(v in self.groups for v in (*node.inputs[:1], *node.outputs)):
                self.operator(node, graph)

    def operators(self, value: ir.Value, hint: str) -> RowOperators:
        """Records for the group of ``value``."""
        assert value.dtype is not None
        return RowOperators(Recorder(self.namer, hint), value.dtype, self.shapes[self.groups[value]])

    def operator(self, node: ir.Node, graph: ir.Graph) -> None:
        """Replaces an operator on sequences by one on rows."""
        output, given = node.outputs[0], [v for v in node.inputs if v is not None]
        of = output if output in self.groups else given[0]
        record = self.operators(of, node.name or node.op_type)
        made = self.made(node, record)
        graph.insert_before(node, record.op.nodes)
        self.old.append(node)
        if isinstance(made, Rows):
            self.rows[output] = made
            return
        made.type, made.shape, name, output.name = output.type, output.shape, output.name, None
        made.name = name
        ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)

    def made(self, node: ir.Node, record: RowOperators) -> Rows | ir.Value:
        """What ``node`` computes, on rows."""
        given = [v for v in node.inputs if v is not None]
        held = self.rows.get(given[0]) if given else None
        place = given[-1] if len(given) > 1 else None
        named = node.attributes
        if node.op_type == "SequenceEmpty":
            return record.zeros(0)
        if node.op_type == "SequenceConstruct":
            return record.construct(given)
        if node.op_type == "SplitToSequence":
            length, keepdims = piece_length(node), len(given) > 1 or bool(named.get_int("keepdims", 1))
            assert length is not None
            return record.split(given[0], named.get_int("axis", 0), length, keepdims=keepdims)
        assert held is not None
        if node.op_type == "SequenceInsert":
            origin = replaced(node)
            if origin is not None and len(given) > 2:
                return record.replace(self.rows[origin], given[1], given[2])
            return record.insert(held, given[1], given[2] if len(given) > 2 else None)
        if node.op_type == "SequenceErase":
            return record.erase(held, place)
        if node.op_type == "SequenceLength":
            return record.op.Identity(record.length(held))
        if node.op_type == "ConcatFromSequence":
            return record.concat(held, named["axis"].as_int(), new_axis=bool(named.get_int("new_axis", 0)))
        if node.op_type == "SequenceAt":
            assert place is not None
            return record.at(held, place)
        assert node.op_type == "Identity"
        return record.rows(record.op.Identity(held.tensor), held.known, held.count)

    def branch(self, node: ir.Node) -> None:
        """Returns rows in the place of sequences, and counts behind the other outputs."""
        sides = branch_site(node).branches
        for side in sides:
            self.graph(side)
        for k, output in enumerate(list(node.outputs)):
            if output not in self.groups:
                continue
            rows = [self.rows[side.outputs[k]] for side in sides]
            counted = any(held.count is not None for held in rows)
            for side, held in zip(sides, rows, strict=True):
                side.outputs[k] = held.tensor
                if counted:
                    side.outputs.append(self.own_count(output, held, side))
            known = rows[0].known if rows[0].known == rows[1].known else None
            output.type, output.shape = ir.TensorType(rows[0].tensor.dtype or ir.DataType.UNDEFINED), None
            output.shape = ir.Shape([known, *rows[0].element])
            count = None
            if counted:
                node.resize_outputs(len(node.outputs) + 1)
                count = self.declared(node.outputs[-1], output)
            self.rows[output] = Rows(output, count)

    def own_count(self, value: ir.Value, held: Rows, graph: ir.Graph) -> ir.Value:
        """The number of elements as an output of ``graph``, made for that alone."""
        record = self.operators(value, f"{value.name}.count")
        copy = record.op.Identity(record.length(held))
        copy.type, copy.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        graph.extend(record.op.nodes)
        return copy

    def declared(self, count: ir.Value, value: ir.Value) -> ir.Value:
        """``count`` as the number of elements of ``value``."""
        count.name = self.namer.fresh(f"{value.name}.count")
        count.type, count.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        return count

    def loop(self, site: LoopSite, graph: ir.Graph) -> None:
        """Carries rows in the place of sequences, and counts behind the other carries."""
        if not any(carry.initial in self.groups for carry in site.carries):
            self.graph(site.body)
            return
        _Carried(self, site, graph).replace()

    def bytes_of(self, rows: int, value: ir.Value) -> int:
        """What rows for ``value`` take."""
        assert value.dtype is not None
        return int(rows * np.prod(self.shapes[self.groups[value]], dtype=np.int64) * value.dtype.bitwidth) // 8


class _Carried:
    """One Loop whose carries are sequences."""

    def __init__(self, conversion: _Conversion, site: LoopSite, graph: ir.Graph) -> None:
        self.of, self.site, self.graph = conversion, site, graph
        self.before = Recorder(conversion.namer, site.node.name or "loop")
        self.after = self.before.inside()
        self.lengths: dict[Carry, int | None] = {}
        self.grown = {
            carry: growth(carry.exit, carry.entry) for carry in site.carries if carry.initial in conversion.groups
        }

    def replace(self) -> None:
        """Puts the new Loop in the place of the old one."""
        of, site, body = self.of, self.site, self.site.body
        sequences = [carry for carry in site.carries if carry.initial in of.groups]
        collecting = [carry for carry in sequences if self.collects(carry)]
        kept = [carry for carry in site.carries if carry not in collecting]
        rows = {carry: self.start(carry) for carry in sequences if carry not in collecting}
        elements = [self.collected(carry) for carry in collecting]
        for carry, held in rows.items():
            entry = carry.entry
            entry.type, entry.shape = held.tensor.type, held.tensor.shape
            count = None if held.count is None else of.declared(ir.Value(), entry)
            of.rows[entry] = Rows(entry, count)
        of.graph(body)
        exits = [self.exit_of(c) if c in rows else body.outputs[1 + site.carries.index(c)] for c in kept]
        counted = [carry for carry, held in rows.items() if held.count is not None]
        assert site.index is not None
        assert site.predicate is not None
        proceed, stacked = body.outputs[0], list(body.outputs[1 + len(site.carries) :])
        counts = [of.own_count(carry.entry, of.rows[carry.exit], body) for carry in counted]
        entries = [of.rows[carry.entry].count for carry in counted]
        body.inputs[:] = [site.index, site.predicate, *(c.entry for c in kept), *(e for e in entries if e is not None)]
        body.outputs[:] = [proceed, *self.separate(exits, body), *counts, *stacked, *elements]
        inputs = [site.limit, site.start, *(rows[c].tensor if c in rows else c.initial for c in kept)]
        inputs += [rows[carry].count for carry in counted]
        self.put(inputs, kept, counted, collecting, rows)

    def put(
        self,
        inputs: Sequence[ir.Value | None],
        kept: Sequence[Carry],
        counted: Sequence[Carry],
        collecting: Sequence[Carry],
        rows: Mapping[Carry, Rows],
    ) -> None:
        """Writes the Loop, and what stands for the old one's results."""
        of, node = self.of, self.site.node
        new = ir.Node(
            node.domain, "Loop", inputs, node.attributes.values(), num_outputs=len(self.site.body.outputs) - 1,
            name=node.name, doc_string=node.doc_string, metadata_props=node.metadata_props,
        )  # fmt: skip
        results = list(new.outputs)
        finals, results = results[: len(kept)], results[len(kept) :]
        counts, results = results[: len(counted)], results[len(counted) :]
        stacks, collected = results[: len(self.site.outputs)], results[len(self.site.outputs) :]
        tensors = [(c.final, v) for c, v in zip(kept, finals, strict=True) if c not in rows]
        tensors += [(o.stacked, v) for o, v in zip(self.site.outputs, stacks, strict=True)]
        for old, value in tensors:
            value.type, value.shape, value.name, old.name = old.type, old.shape, old.name, None
            ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
        by_count = dict(zip(counted, counts, strict=True))
        for carry, value in zip(kept, finals, strict=True):
            if carry in rows:
                value.name = of.namer.fresh(f"{carry.final.name}.rows")
                count = of.declared(by_count[carry], carry.final) if carry in by_count else None
                of.rows[carry.final] = self.end(carry, value, count, rows[carry])
        for carry, value in zip(collecting, collected, strict=True):
            of.rows[carry.final] = self.joined(carry, value)
        self.graph.insert_before(node, self.before.nodes)
        self.graph.insert_after(node, [new, *self.after.nodes])
        node.attributes.clear()
        of.old.append(node)

    def collects(self, carry: Carry) -> bool:
        """Whether the loop only puts an element behind, once in each iteration, and reads none."""
        uses, made = list(carry.entry.uses()), carry.exit.producer()
        return (
            self.of.rows[carry.initial].count is None
            and len(uses) == 1
            and made is not None
            and uses[0].node is made
            and made.op_type == "SequenceInsert"
            and made.graph is self.site.body
            and len(made.inputs) == 2
            and not list(carry.exit.uses())
            and list(self.site.body.outputs).count(carry.exit) == 1
        )

    def collected(self, carry: Carry) -> ir.Value:
        """The element of an iteration, as a scan output."""
        made = carry.exit.producer()
        assert made is not None
        element = made.inputs[1]
        assert element is not None
        record = self.before.inside()
        row = record.Identity(element)
        row.type, row.shape = ir.TensorType(element.dtype or ir.DataType.UNDEFINED), self.element_shape(carry)
        body = self.site.body
        body.insert_after(made, record.nodes)
        body.outputs[1 + self.site.carries.index(carry)] = row  # until all outputs are written
        body.remove(made, safe=True)
        return row

    def element_shape(self, carry: Carry) -> ir.Shape:
        return ir.Shape(self.of.shapes[self.of.groups[carry.entry]])

    def joined(self, carry: Carry, stacked: ir.Value) -> Rows:
        """What was there and what was collected."""
        held, trips = self.of.rows[carry.initial], trip_count(self.site).static
        stacked.name = self.of.namer.fresh(f"{carry.final.name}.stacked")
        record = self.record(carry, self.after)
        rows = record.rows(stacked, trips)
        if held.known == 0:
            return rows
        known = None if trips is None or held.known is None else held.known + trips
        return record.rows(self.after.Concat(held.tensor, stacked, axis=0), known)

    def record(self, carry: Carry, op: Recorder) -> RowOperators:
        assert carry.entry.dtype is not None
        return RowOperators(op, carry.entry.dtype, self.of.shapes[self.of.groups[carry.entry]])

    def start(self, carry: Carry) -> Rows:
        """The initial rows, and as many behind as the loop may need."""
        held = self.of.rows[carry.initial]
        if held.count is not None:
            return held
        grown, most = self.grown[carry], insertions(self.site.body, carry.entry)
        if grown is None or (most == 0 and not loses(self.site.body, carry.entry)):
            if carry.exit is not carry.entry:
                self.check(carry, held.known)
            return held  # as many after each iteration, see ``exit_of``
        if most is None:
            self.stays(carry, f"nothing says how often inner loops put an element to '{carry.entry.name}'")
        each, trips = max(grown.most, 0), trip_count(self.site)
        extra = most - each  # in an iteration, before it loses some
        record = self.record(carry, self.before)
        if each == 0 or trips.bound is not None:
            more = each * (trips.bound or 0) + extra
            self.check(carry, None if held.known is None else held.known + more)
            if held.known is not None and trips.static is not None and grown.certain:
                self.lengths[carry] = held.known + grown.most * trips.static
            return record.longer(held, more)
        self.check(carry, None)
        limit = self.site.limit
        if limit is None:
            self.stays(carry, f"nothing says before {label(self.site.node)} how many elements it will get")
        op = self.before
        limit = op.Min(op.Reshape(limit, op.constant(np.zeros(0, np.int64))), op.constant(np.array(_MOST_TRIPS)))
        trips_now = op.Max(limit, op.constant(np.array(0)))
        return record.longer(held, op.Add(op.Mul(trips_now, op.constant(np.array(each))), op.constant(np.array(extra))))

    def check(self, carry: Carry, rows: int | None) -> None:
        """Leaves a group alone whose rows take more than they may."""
        if self.of.may_carry(None if rows is None else self.of.bytes_of(rows, carry.entry)):
            return
        many = "a number of elements that the run decides" if rows is None else f"{rows:,} elements"
        self.stays(carry, f"{label(self.site.node)} carries {many}, which each iteration would copy")

    def stays(self, carry: Carry, reason: str) -> NoReturn:
        """Leaves the group of ``carry`` alone."""
        raise _StaysError(self.of.groups[carry.entry], f"'{carry.entry.name}': {reason}")

    def exit_of(self, carry: Carry) -> ir.Value:
        """The rows after an iteration, which are as many as before it."""
        entry, held = self.of.rows[carry.entry], self.of.rows[carry.exit]
        same = held.known == entry.known and (held.known is not None or self.grown[carry] is not None)
        if (entry.count is None) is not (held.count is None) or not same:
            self.stays(carry, "it is another sequence after an iteration, and nothing says that it is as long")
        return held.tensor

    def end(self, carry: Carry, final: ir.Value, count: ir.Value | None, start: Rows) -> Rows:
        """The elements after the loop; the rows around an inner loop stay as they are."""
        record = self.record(carry, self.after)
        rows = record.rows(final, start.known, count)
        inside = self.of.rows[carry.initial].count is not None
        return rows if inside else record.exact(rows, self.lengths.get(carry))

    def separate(self, exits: Sequence[ir.Value], body: ir.Graph) -> list[ir.Value]:
        """Outputs of the body, each made for itself."""
        seen: set[ir.Value] = set(body.inputs)
        made: list[ir.Value] = []
        for value in exits:
            if value in seen:
                record = self.before.inside()
                copy = record.Identity(value)
                copy.type, copy.shape = value.type, value.shape
                body.extend(record.nodes)
                made.append(copy)
            else:
                made.append(value)
            seen.add(value)
        return made
