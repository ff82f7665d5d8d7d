"""Rows that a loop reads by its iteration number, written as the one Gather that the reverse pass stacks.

The cotangents of ``Gather (x, i)`` are stacked by the reverse loop. Any other way to read a row costs a tensor of the
size of x in every iteration, all of them the square of the trip count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from onnx_cfad.graph.element_types import FLOATING
from onnx_cfad.graph.iteration import Indices
from onnx_cfad.graph.regions import LoopSite, loop_site
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.rows_in_front import Reading, construction

_READS = frozenset(("Gather", "GatherND", "Slice"))


class ReadRowsPass(ir.passes.InPlacePass):
    """Writes a read of the row ``x[a i + b]``, with the iteration number i, as ``Gather (y, i)``.

    The rows of y are those of x in the order in which they are read, made in front of the loop; y is x for a = 1 and
    b = 0. The step a is a constant, b an integer from outside of the loop, x a tensor from there. Recognised are:

    - a Gather (or a GatherND) of one row, which may count from the end, by the iteration number or by a counter;
    - a Slice of one element whose axis a Squeeze takes away, where that is such a row;
    - a Slice of one row or of a window of rows, ``x[j : j + k]``, where no bound is certainly ever clamped. Windows
      take the memory of x as often as they overlap: more than four times only where that is 64 MiB at most.

    Elements are copied either way, so no bit changes. Shapes of values are read; new ones have to be inferred.

    Args:
        kept: Names of values that have to be passed through.
        is_fixed: Whether no derivative by a tensor is asked for: windows of it stay, which would take its memory
            several times.
    """

    def __init__(self, kept: Collection[str] = (), is_fixed: Callable[[ir.Value], bool] | None = None) -> None:
        super().__init__()
        self._kept, self._is_fixed = frozenset(kept), is_fixed

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits the body of every Loop once."""
        namer, changed = Namer.on_demand(model), False
        for loop in nodes_of(model.graph):
            if loop.op_type == "Loop" and loop.domain in ("", "ai.onnx"):
                changed |= _BodyReads(loop_site(loop), namer, self._kept, self._is_fixed).rewrite()
        return ir.passes.PassResult(model, changed)


class _BodyReads:
    """The reads of one body."""

    def __init__(
        self, site: LoopSite, namer: Namer, kept: frozenset[str], is_fixed: Callable[[ir.Value], bool] | None
    ) -> None:
        self.site, self.namer, self.kept, self.is_fixed = site, namer, kept, is_fixed
        self._indices: Indices | None = None
        self._made: dict[Reading, ir.Value] = {}

    @property
    def indices(self) -> Indices:
        if self._indices is None:
            self._indices = Indices(self.site)
        return self._indices

    def rewrite(self) -> bool:
        """Rewrites all of them; whether there was one."""
        nodes = [node for node in self.site.body if node.domain in ("", "ai.onnx")]
        found = [self.replace(node, self.squeezed(node)) for node in nodes if node.op_type == "Squeeze"]
        found += [self.replace(node, self.read(node)) for node in nodes if node.op_type in _READS and _is_read(node)]
        return any(found)

    def read(self, node: ir.Node) -> Reading | None:
        """What ``node`` reads where it gives a row, or rows, and is not the Gather that is wanted."""
        return self.sliced(node) if node.op_type == "Slice" else self.gathered(node, several=True)

    def gathered(self, node: ir.Node, *, several: bool) -> Reading | None:
        """What a Gather by one integer reads: one row, without its axis unless the integer has one."""
        source, place = node.inputs
        if node.op_type == "GatherND":
            whole = place is not None and place.shape is not None and place.shape.dims == (1,)
            batched = node.attributes.get_int("batch_dims", 0)
            return self.reading(source, 0, place, wraps=True) if whole and not batched else None
        if place is self.site.index or place is None or place.shape is None:
            return None
        axis = node.attributes.get_int("axis", 0)
        return self.reading(source, axis, place, wraps=True, length=place.shape.rank() if several else 0)

    def squeezed(self, node: ir.Node) -> Reading | None:
        """What a Gather or Slice of one row reads whose axis ``node`` takes away."""
        picked = node.inputs[0].producer() if node.inputs[0] is not None else None
        axes = _integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if picked is None or picked.graph is not self.site.body or axes is None or len(axes) != 1:
            return None
        if picked.domain not in ("", "ai.onnx") or picked.outputs[0].name in self.kept:
            return None
        if picked.op_type == "Gather" and picked.inputs[1] is not None and picked.inputs[1].shape is not None:
            read = self.gathered(picked, several=False) if picked.inputs[1].shape.rank() == 1 else None
        else:
            read = self.element(picked) if picked.op_type == "Slice" else None
        rank = None if read is None or read.source.shape is None else read.source.shape.rank()
        return read if read is not None and rank is not None and axes[0] % rank == read.axis else None

    def element(self, node: ir.Node) -> Reading | None:
        """What a Slice reads if it gives one element: the one that it starts from, whatever its end and its step."""
        source, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
        named, strides = [0] if axes is None else _integers(axes), [1] if steps is None else _integers(steps)
        if starts is None or named is None or len(named) != 1 or strides is None or strides[0] < 0:
            return None
        stops = ends is not None and self.length(starts, ends) == 1
        return self.reading(source, named[0], starts, stops=stops)

    def sliced(self, node: ir.Node) -> Reading | None:
        """What a Slice of a known number of rows reads, none of which is ever missing."""
        source, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
        named, strides = [0] if axes is None else _integers(axes), [1] if steps is None else _integers(steps)
        if starts is None or ends is None or named is None or len(named) != 1 or strides != [1]:
            return None
        length = self.length(starts, ends)
        if source is None or length is None or length < 1:
            return None
        if length > 1 and self.is_fixed is not None and self.is_fixed(source):
            return None
        read = self.reading(source, named[0], starts, length=length)
        return read if read is not None and read.stays_inside else None

    def length(self, starts: ir.Value, ends: ir.Value) -> int | None:
        """How far one integer is behind another in every iteration; None where that is not known."""
        first, last = self.indices.of(starts), self.indices.of(ends)
        if first is None or last is None or first.step != last.step:
            return None
        return (last.first - first.first).constant

    def reading(
        self,
        source: ir.Value | None,
        axis: int,
        place: ir.Value | None,
        *,
        wraps: bool = False,
        stops: bool = False,
        length: int = 0,
    ) -> Reading | None:
        if source is None or source.graph is self.site.body or source.shape is None or source.dtype not in FLOATING:
            return None
        if place is None or place.shape is None or place.shape.rank() > 1 or any(dim != 1 for dim in place.shape):
            return None
        index = self.indices.of(place)
        if index is None or not source.shape.rank():
            return None
        return Reading(source, axis % source.shape.rank(), index, self.indices.trips, wraps, stops, length)

    def source(self, read: Reading) -> ir.Value | None:
        """The rows in the order in which they are read; None where there is no way to them."""
        if read not in self._made:
            record, op = construction(read), Recorder(self.namer, "rows")
            if record is None:
                return None
            rows = self._made[read] = record(op)
            rows.type = read.source.type
            assert self.site.node.graph is not None
            self.site.node.graph.insert_before(self.site.node, op.nodes)
        return self._made[read]

    def replace(self, node: ir.Node, read: Reading | None) -> bool:
        """Puts the Gather in the place of ``node``, under its name and that of its output; whether it could."""
        source = None if read is None or node.outputs[0].name in self.kept else self.source(read)
        if read is None or source is None:
            return False
        op = Recorder(self.namer, node.name or "row")
        row = op.Gather(source, self.site.index, axis=read.axis)
        made = op.Unsqueeze(row, op.ints(read.axis)) if read.length == 1 else row
        for one in op.nodes:
            one.metadata_props.update(node.metadata_props)
        op.nodes[-1].name = node.name
        op.replace(self.site.body, node, [made])
        return True


def _is_read(node: ir.Node) -> bool:
    """Whether anything needs what ``node`` gives, now that other reads are rewritten."""
    return bool(node.outputs[0].uses()) or node.outputs[0].is_graph_output()


def _integers(value: ir.Value | None) -> list[int] | None:
    """A constant vector of integers."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(x) for x in tensor.numpy().reshape(-1)]
