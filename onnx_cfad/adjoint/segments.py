"""A loop as a loop over segments of iterations: the same iterations in the same order, nested one level deeper.

With a trip count that the segment length divides, both levels are Scans over reshaped inputs. Otherwise both are Loops:
the outer one runs ceil(M / S) times or until the condition fails, the inner one min(S, M - k * S) times; the condition
is handed from segment to segment, so it is evaluated exactly as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.operator_types import keep_shape
from onnx_cfad.graph.regions import Carry, LoopSite, ScanInput, loop_site, mark_level

WITHOUT_LIMIT = 64
"""Iterations in a segment of a loop that has no trip limit, where none were asked for."""

SHORTEST = 16
"""Iterations in a segment at least: below, the overhead of the outer loop shows."""

LONGEST_SEQUENCE = 128
"""Iterations in a segment at most, where carries are kept in a sequence: it is copied by each SequenceInsert."""

_NO_LIMIT = 2**40
_INT64 = ir.TensorType(ir.DataType.INT64)
_BOOL = ir.TensorType(ir.DataType.BOOL)


@dataclasses.dataclass(frozen=True)
class Segmented:
    """A loop over segments.

    Attributes:
        outer: The loop over segments, in place of the original.
        inner: The loop over the iterations of one segment; its body is the original body.
        positive: Bodies of Loops that run at least once whenever they are reached.
        length: The full length of a segment whose last run may be shorter; a value where the run decides.
    """

    outer: ir.Node
    inner: ir.Node
    positive: frozenset[ir.Graph] = frozenset()
    length: int | ir.Value = 0


def segment_scan(node: ir.Node, segment: int, trips: int, builder: Builder) -> Segmented:
    """Segments a Scan of ``trips`` iterations, which ``segment`` divides.

    Args:
        node: The Scan.
        segment: Iterations in a segment.
        trips: Iterations in all.
        builder: Gives names and the opset; nothing is recorded with it.
    """
    _count_axes_from_front(node)
    site, count = loop_site(node), trips // segment
    before, body = builder.child(), builder.child()
    sources = [_split_axis(before.expr(x.source), x.axis, count, segment) for x in site.inputs]
    entries = [body.input(f"segment.{c.entry.name}", c.entry.type, c.entry.shape) for c in site.carries]
    slices = [body.input(f"segment.{x.slice.name}", x.slice.type, _with_dim(x, segment)) for x in site.inputs]
    inner = body.call(
        "Scan",
        [*entries, *slices],
        {key: value.value for key, value in node.attributes.items()},
        types=[output.type for output in node.outputs if output.type is not None],
        outputs=len(node.outputs),
    )
    _describe(inner, site, segment)
    graph = body.graph([e.value for e in (*entries, *slices)], inner, "segments")
    outer = before.call(
        "Scan",
        [*(before.expr(c.initial) for c in site.carries), *sources],
        {**{key: value.value for key, value in node.attributes.items() if key != "body"}, "body": graph},
        types=[output.type for output in node.outputs if output.type is not None],
        outputs=len(node.outputs),
    )
    outer_node = _producer(outer[0])
    results: list[Expr] = list(outer[: len(site.carries)])
    for output, whole in zip(site.outputs, outer[len(site.carries) :], strict=True):
        results.append(_merge_axis(whole, output.axis, output.stacked))
    _replace(node, outer_node, before, results)
    mark_level(_producer(inner[0]))
    return Segmented(outer_node, _producer(inner[0]))


def segment_loop(
    node: ir.Node, segment: int, builder: Builder, *, conditional: bool, longest: int | None = None
) -> Segmented:
    """Segments a Loop whose trip count only the run knows (or that ``segment`` does not divide).

    Args:
        node: The Loop.
        segment: Iterations in a segment; the last one may be shorter. 0 for about the root of the trip limit.
        builder: Gives names and the opset; nothing is recorded with it.
        conditional: A computed condition may end the loop.
        longest: Iterations in a segment at most, where the run chooses.
    """
    return _LoopSegments(node, segment, builder, conditional, longest).run()


class _LoopSegments:
    """Builds the two Loops of ``segment_loop``."""

    def __init__(
        self, node: ir.Node, segment: int, builder: Builder, conditional: bool, longest: int | None = None
    ) -> None:
        self.node, self.segment, self.conditional, self.longest = node, segment, conditional, longest
        self.site = loop_site(node)
        self.before, self.body = builder.child(), builder.child()
        self.step = self.body.input("segment", _INT64, ir.Shape([]))
        self.going = self.body.input("segment.going", _BOOL, ir.Shape([]))
        self.done = self.body.input("segment.done", _INT64, ir.Shape([]))
        self.chosen: ir.Value | None = None
        self.dim: int | ir.SymbolicDim = segment

    def length(self, builder: Builder) -> Expr:
        """The segment length in a scope (int64 scalar): as asked, or the root of the limit that the run knows."""
        return builder.constant(np.int64(self.segment)) if self.chosen is None else builder.expr(self.chosen)

    def lengths(self, builder: Builder) -> Expr:
        """The segment length in a scope, as a vector."""
        return self.length(builder).unsqueeze([0]) if self.chosen is not None else builder.constant([self.segment])

    def choose(self, limit: Expr | None) -> None:
        """Settles the segment length where none was asked for: about the root of half the trip limit."""
        if self.segment:
            return
        self.segment = WITHOUT_LIMIT
        self.dim = WITHOUT_LIMIT
        if limit is not None:
            root = op.Cast(op.Sqrt(op.Cast(op.Div(limit, 2), to=int(ir.DataType.DOUBLE))), to=int(ir.DataType.INT64))
            sensible = op.Less(limit, _NO_LIMIT)  # exporters write the largest integer for a loop without a limit
            root = root if self.longest is None else op.Min(root, self.longest)
            chosen = op.Where(sensible, op.Max(root, SHORTEST), WITHOUT_LIMIT)
            chosen.value.shape = ir.Shape([])
            self.chosen = chosen.value
            self.dim = ir.SymbolicDim(self.before.namer.fresh("segment_length"))

    def run(self) -> Segmented:
        site, body = self.site, self.body
        limit = None if site.limit is None else op.Max(self.before.expr(site.limit).reshape([]), 0)
        start = self.before.constant(True) if site.start is None else self.before.expr(site.start).reshape([])
        entries = [body.input(f"segment.{c.entry.name}", c.entry.type, _entry_shape(c)) for c in site.carries]
        self.choose(limit)
        self.cut_rows()
        inner = self.inner_loop(limit, entries)
        carried = inner[: len(site.carries)]
        alive = inner[len(site.carries)] if self.conditional else None
        trips = inner[len(site.carries) + int(self.conditional)]
        stacked = [self.padded(x, trips) for x in inner[len(site.carries) + int(self.conditional) + 1 :]]
        proceed = alive or body.expr(body.fresh_identity(self.going.value))
        graph = body.graph(
            [e.value for e in (self.step, self.going, self.done, *entries)],
            [proceed, op.Add(self.done, trips), *carried, *stacked],
            "segments",
        )
        outer = self.before.call(
            "Loop",
            [self.segments(limit), start, self.before.constant(np.int64(0))]
            + [self.before.expr(c.initial) for c in site.carries],
            {"body": graph},
            types=[_INT64, *(_type(c.final) for c in site.carries), *(_type(o.stacked) for o in site.outputs)],
            outputs=1 + len(site.carries) + len(stacked),
        )
        outer_node = _producer(outer[0])
        outer[0].value.shape = ir.Shape([])
        finals = list(outer[1 : 1 + len(site.carries)])
        merged = [
            self.merged(x, outer[0], o.stacked) for x, o in zip(outer[1 + len(finals) :], site.outputs, strict=True)
        ]
        _replace(self.node, outer_node, self.before, [*finals, *merged])
        mark_level(_producer(inner[0]))
        length: int | ir.Value = self.segment if self.chosen is None else self.chosen
        return Segmented(outer_node, _producer(inner[0]), frozenset({site.body}), length)

    def segments(self, limit: Expr | None) -> Expr | None:
        """How many segments there are at most: ceil(M / S) without overflow."""
        if limit is None:
            return None
        size = self.length(self.before)
        whole, rest = op.Div(limit, size), op.Mod(limit, size)
        return op.Add(whole, op.Min(rest, 1))

    def inner_loop(self, limit: Expr | None, entries: Sequence[Expr]) -> tuple[Expr, ...]:
        """The loop over one segment: the original body, which also hands out its condition and counts."""
        site, body = self.site, self.body
        size = self.length(body)
        begin = op.Mul(self.step, size)
        if limit is not None:
            size = op.Min(op.Sub(body.expr(limit.value), begin), size)
        self.renumber(begin)
        extra = [*self.condition_carry(), self.count_carry()]
        count = len(site.carries)
        for position, (entry, exit_) in enumerate(extra):
            site.body.inputs.append(entry)
            site.body.outputs.insert(1 + count + position, exit_)
        starts = [self.going] * (len(extra) - 1) + [body.constant(np.int64(0))]
        types = [*(_type(c.final) for c in site.carries), *(_BOOL,) * (len(extra) - 1), _INT64]
        outs = body.call(
            "Loop",
            [size, self.going if self.conditional else None, *entries, *starts],
            {"body": site.body},
            types=[*types, *(_type(o.stacked) for o in site.outputs)],
            outputs=count + len(extra) + len(site.outputs),
        )
        for out, carry in zip(outs, site.carries, strict=False):
            out.value.shape = carry.final.shape
        for out in outs[count : count + len(extra)]:
            out.value.shape = ir.Shape([])
        return outs

    def condition_carry(self) -> list[tuple[ir.Value, ir.Value]]:
        if not self.conditional:
            return []
        site, namer = self.site, self.body.namer
        assert site.proceed is not None
        entry = ir.Value(name=namer.fresh("alive"), type=_BOOL, shape=ir.Shape([]))
        copy = Builder(namer, self.body.opset)
        exit_ = copy.expr(site.proceed).reshape([])
        exit_.value.shape = ir.Shape([])
        copy.append_to(site.body)
        assert site.predicate is not None
        site.predicate.shape = ir.Shape([])  # the condition of a segment is handed in as a scalar
        return [(entry, exit_.value)]

    def count_carry(self) -> tuple[ir.Value, ir.Value]:
        """The number of iterations that ran in the segment."""
        namer = self.body.namer
        entry = ir.Value(name=namer.fresh("ran"), type=_INT64, shape=ir.Shape([]))
        count = Builder(namer, self.body.opset)
        exit_ = op.Add(count.expr(entry), 1)
        count.append_to(self.site.body)
        return entry, exit_.value

    def renumber(self, begin: Expr) -> None:
        """Readers of the iteration number see that of the whole loop; rows of segments read that of the segment."""
        index = self.site.index
        assert index is not None
        readers = [usage for usage in index.uses() if usage.node not in self._row_nodes]
        if not readers and not any(o is index for o in self.site.body.outputs):
            return
        number = Builder(self.body.namer, self.body.opset)
        whole = op.Add(number.expr(begin.value), number.expr(index))
        whole.value.shape = ir.Shape([])
        for usage in readers:
            usage.node.replace_input_with(usage.idx, whole.value)
        for position, output in enumerate(self.site.body.outputs):
            if output is index:
                self.site.body.outputs[position] = whole.value
        first = next(iter(self.site.body))
        self.site.body.insert_before(first, number.nodes)

    _row_nodes: frozenset[ir.Node] = frozenset()

    def cut_rows(self) -> None:
        """Reads ``Gather(x, i)`` of outer tensors: x is cut into segments, and a segment reads its own rows."""
        nodes = self.site.rows(leading=False)
        for node in nodes:
            source = node.inputs[0]
            assert source is not None
            assert source.shape is not None
            axis = node.attributes.get_int("axis", 0) % source.shape.rank()
            part = op.Gather(self.body.expr(self.cut(source, axis).value), self.step, axis=axis)
            part.value.shape = ir.Shape([*source.shape.dims[:axis], self.dim, *source.shape.dims[axis + 1 :]])
            node.replace_input_with(0, part.value)
        self._row_nodes = frozenset(nodes)

    def cut(self, source: ir.Value, axis: int) -> Expr:
        """``source`` [.., D, ..] as [.., ceil(D / S), S, ..], padded with zeros."""
        x = self.before.expr(source)
        rows, rank = x.dim(axis), x.rank
        sizes = self.lengths(self.before)
        short = op.Mod(op.Sub(sizes, op.Mod(rows, sizes)), sizes)
        static = x.dims[axis]
        if static is None or self.chosen is not None or static % self.segment:
            zeros = self.before.constant(np.zeros(rank + axis, dtype=np.int64))
            behind = rank - 1 - axis
            rest = [self.before.constant(np.zeros(behind, dtype=np.int64))] if behind else []
            x = op.Pad(x, concat([zeros, short, *rest]))
        dims = source.shape.dims if source.shape is not None else ()
        full = all(isinstance(d, int) and d > 0 for d in (*dims[:axis], *dims[axis + 1 :]))
        count = self.before.constant([-1]) if full else op.Div(op.Add(rows, short), sizes)
        whole = self.before.expr(source)
        head = [op.Shape(whole, start=0, end=axis)] if axis else []
        cut = x.reshape(concat([*head, count, sizes, *_dims_after(whole, axis + 1)]))
        counted = static is not None and self.chosen is None
        first = -(-static // self.segment) if counted and static is not None else ir.SymbolicDim(None)
        cut.value.shape = ir.Shape([*dims[:axis], first, self.dim, *dims[axis + 1 :]])
        return cut

    def padded(self, x: Expr, trips: Expr) -> Expr:
        """A stacked result of one segment padded to the full segment length, so that segments can be stacked."""
        missing = op.Sub(self.length(self.body), trips).unsqueeze([0])
        shape = op.Shape(x)
        zeros = op.Expand(self.body.constant(np.asarray([0], dtype=np.int64)), op.Shape(shape))
        return op.Pad(x, concat([zeros, missing, op.Slice(zeros, [1], [2**62], [0])]))

    def merged(self, x: Expr, total: Expr, like: ir.Value) -> Expr:
        """Stacked segments [K, S, ...] as the stacked iterations that ran."""
        rows = op.Mul(op.Shape(x, start=0, end=1), self.lengths(x.builder))
        dims = like.shape.dims[1:] if like.shape is not None else ()
        static = like.shape is not None and all(isinstance(d, int) for d in dims)
        rest = x.builder.constant(np.asarray(dims, dtype=np.int64)) if static else op.Shape(x, start=2)
        flat = op.Reshape(x, op.Concat(rows, rest, axis=0), allowzero=1)
        result = op.Slice(flat, [0], total.unsqueeze([0]), [0])
        result.value.shape = like.shape
        return result


def _count_axes_from_front(node: ir.Node) -> None:
    """Makes the axes of a Scan non-negative, so that they mean the same one level up."""
    site = loop_site(node)
    wholes = (("scan_input_axes", [(x.axis, x.source) for x in site.inputs]),)
    for name, axes in (*wholes, ("scan_output_axes", [(o.axis, o.stacked) for o in site.outputs])):
        if any(axis < 0 for axis, _ in axes):
            counted = [axis if axis >= 0 else axis + _rank(value) for axis, value in axes]
            node.attributes[name] = ir.AttrInt64s(name, counted)


def _rank(value: ir.Value) -> int:
    if value.shape is None:
        raise UnsupportedOp(f"value '{value.name}'", "its rank is unknown, and a Scan counts an axis from its end")
    return value.shape.rank()


def _entry_shape(carry: Carry) -> ir.Shape | None:
    return carry.entry.shape


def _type(value: ir.Value) -> ir.TypeProtocol:
    assert value.type is not None
    return value.type


def _producer(x: Expr) -> ir.Node:
    node = x.value.producer()
    assert node is not None
    return node


def _with_dim(source: ScanInput, dim: int) -> ir.Shape | None:
    whole = source.source.shape
    if whole is None:
        return None
    dims = list(whole.dims)
    dims[source.axis] = dim
    return ir.Shape(dims)


def _dims_after(x: Expr, axis: int) -> list[Expr]:
    return [op.Shape(x, start=axis)] if x.rank > axis else []


def _split_axis(x: Expr, axis: int, count: int, segment: int) -> Expr:
    """``x`` with ``axis`` cut in two: count and segment."""
    axis = axis % x.rank
    head = [op.Shape(x, start=0, end=axis)] if axis else []
    middle = x.builder.constant(np.asarray([count, segment], dtype=np.int64))
    result = x.reshape(concat([*head, middle, *_dims_after(x, axis + 1)]))
    dims = list(x.value.shape.dims) if x.value.shape is not None else []
    result.value.shape = ir.Shape([*dims[:axis], count, segment, *dims[axis + 1 :]])
    return result


def _merge_axis(x: Expr, axis: int, like: ir.Value) -> Expr:
    """``x`` with axes ``axis`` and the next one merged."""
    rank = like.shape.rank() if like.shape is not None else 0
    axis = axis % rank if axis < 0 else axis
    head = [op.Shape(x, start=0, end=axis)] if axis else []
    tail = op.Shape(x, start=axis + 2)
    both = op.Mul(op.Shape(x, start=axis, end=axis + 1), op.Shape(x, start=axis + 1, end=axis + 2))
    result = x.reshape(concat([*head, both, tail]))
    result.value.shape = like.shape
    return result


def _describe(outs: Sequence[Expr], site: LoopSite, segment: int) -> None:
    for out, carry in zip(outs, site.carries, strict=False):
        out.value.shape = carry.final.shape
    for out, output in zip(outs[len(site.carries) :], site.outputs, strict=True):
        shape = output.stacked.shape
        if shape is not None:
            dims = list(shape.dims)
            dims[output.axis] = segment
            out.value.shape = ir.Shape(dims)


def _replace(node: ir.Node, outer: ir.Node, before: Builder, results: Sequence[Expr]) -> None:
    """Puts what ``before`` recorded in place of ``node``; the results take over the names of its outputs."""
    graph = node.graph
    assert graph is not None
    outer.name = node.name
    for initializer in before.initializers:
        graph.initializers.add(initializer)
    old = list(node.outputs)
    for result, output in zip(results, old, strict=True):
        keep_shape(result.value, output.shape)
    node.attributes.pop("body")
    ir.convenience.replace_nodes_and_values(graph, node, [node], before.nodes, old, [r.value for r in results])
