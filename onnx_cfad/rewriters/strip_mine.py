"""Long loops in two levels: N iterations as N / S blocks of S.

A machine that keeps a frame for each iteration of a loop that runs (Relay's virtual machine: 17 kB) then keeps
N / S + S of them instead of N, and one that copies all rows to add another copies N^1.5 of them instead of N^2. Strip
mining is an old transformation of loops, for vector registers (Allen and Kennedy, "Optimizing Compilers for Modern
Architectures", 2001, section 5.2).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite, loop_site
from onnx_cfad.graph.trips import TripCount, trip_count
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.rewrite_nodes import RewriteNodesPass

_BLOCK = 256  # iterations, where nothing says how many there will be
_MOST = 2**62


class StripMinePass(RewriteNodesPass):
    """Splits every Loop that may run long into a Loop of blocks, in the main graph and all subgraphs.

    Given ``y, rows = Loop (n, go, x)``, the result is ``y, blocks = Loop (ceil (n / S), go, x)`` whose body is
    ``Loop (min (S, n - j * S), go, ...)`` around what was the body, its rows padded to S; behind it the blocks are
    joined and cut to the rows that there are. A condition that ends a block ends the loop of blocks. The operators of
    the body stay, so results are bit-equal as far as kernels do not depend on the depth that they run at.

    Loops state their limit and condition (see ``SupplyLimitsPass``), and shapes have been inferred. A Loop that stacks
    rows of unknown shape is left alone.

    Args:
        longest: Iterations that a loop may have and stay as it is.
        unbounded: Whether loops without a known bound are split, too.
    """

    def __init__(self, longest: int, *, unbounded: bool = True) -> None:
        super().__init__()
        self._longest, self._unbounded = longest, unbounded

    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Splits a long Loop; its parts are not split again."""
        if node.op_type != "Loop":
            return False
        site = loop_site(node)
        trips = trip_count(site)
        long = self._unbounded if trips.bound is None else trips.bound > self._longest
        split = long and all(_is_static(output.element) for output in site.outputs)
        if split:
            _Strip(site, trips, Recorder(namer, node.name or "loop")).replace(graph)
        return split


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def block_size(trips: int | None) -> int:
    """The iterations of a block: a divisor of the trip count near its square root, else that; see ``_BLOCK``."""
    if trips is None:
        return _BLOCK
    root = math.isqrt(max(trips - 1, 0)) + 1
    near = [s for s in range(root, 2 * root) if trips % s == 0]
    return near[0] if near else root


class _Strip:
    """One Loop on its way to two."""

    def __init__(self, site: LoopSite, trips: TripCount, op: Recorder) -> None:
        self.site, self.trips, self.op = site, trips, op
        self.size = block_size(trips.bound)
        self.even = trips.static is not None and trips.static % self.size == 0
        self.counted = trips.conditional and bool(site.outputs)

    def replace(self, graph: ir.Graph) -> None:
        """Puts the two in the place of the one."""
        site, op = self.site, self.op
        limit, start = site.limit, site.start
        assert limit is not None
        limit = op.Max(op.Min(limit, op.constant(np.array(_MOST))), op.constant(np.array(0)))
        blocks = op.Div(op.Add(limit, op.constant(np.array(self.size - 1))), op.constant(np.array(self.size)))
        initials = [carry.initial for carry in site.carries]
        given = [*initials, op.ints(0)] if self.counted else initials
        body = self.outer(limit)
        outputs = len(body.outputs) - 1
        results = op.Loop(blocks, start, *given, body=body, _outputs=max(outputs, 1))
        results = [results] if isinstance(results, ir.Value) else list(results)
        finals, stacks = results[: len(initials)], results[len(given) :]
        count = results[len(initials)] if self.counted else op.Reshape(limit, op.ints(1))
        rows = [self.joined(stack, output.element, count) for stack, output in zip(stacks, site.outputs, strict=False)]
        op.replace(graph, site.node, [*finals, *rows])

    def outer(self, limit: ir.Value) -> ir.Graph:
        """The body of the loop of blocks."""
        site, op = self.site, self.op.inside()
        block, going = op.variable("block", ir.DataType.INT64), op.variable("going", ir.DataType.BOOL)
        entries = [op.like(carry.entry) for carry in site.carries]
        size = op.constant(np.array(self.size))
        first = op.Mul(block, size)
        trips = size if self.even else op.Min(op.Sub(limit, first), size)
        given = [*entries, going] if self.trips.conditional else entries
        body = self.inner(first)
        results = op.Loop(trips, going, *given, body=body, _outputs=max(len(body.outputs) - 1, 1))
        results = [results] if isinstance(results, ir.Value) else list(results)
        finals, stacks = results[: len(entries)], results[len(given) :]
        for final, carry in zip(finals, site.carries, strict=True):
            final.type, final.shape = carry.exit.type, carry.exit.shape
        outputs = [results[len(entries)] if self.trips.conditional else op.Identity(going), *finals]
        inputs = [block, going, *entries]
        if self.counted:
            counted = op.variable("rows", ir.DataType.INT64, [1])
            inputs.append(counted)
            outputs.append(op.Add(counted, op.Shape(stacks[0], start=0, end=1)))
        outputs += [self.padded(op, s, o.element) for s, o in zip(stacks, site.outputs, strict=False)]
        return ir.Graph(inputs, outputs, nodes=op.nodes, name="blocks")

    def inner(self, first: ir.Value) -> ir.Graph:
        """What was the body, for iterations that are counted from ``first``."""
        site, body, op = self.site, self.site.body, self.op.inside()
        assert site.index is not None
        assert site.proceed is not None
        within = op.variable("within", ir.DataType.INT64)
        number = op.Add(first, within)
        number.type, number.shape = site.index.type, ir.Shape([])
        ir.convenience.replace_all_uses_with(site.index, number, replace_graph_outputs=True)
        body.inputs[0] = within
        op.put_first(body)
        if self.trips.conditional:  # a Loop does not say how its condition ended
            last = self.op.inside()
            body.inputs.append(last.variable("unread", ir.DataType.BOOL))
            body.outputs.insert(1 + len(site.carries), last.Identity(body.outputs[0]))
            body.outputs[1 + len(site.carries)].type = ir.TensorType(ir.DataType.BOOL)
            body.outputs[1 + len(site.carries)].shape = ir.Shape([])
            body.extend(last.nodes)
        return body

    def padded(self, op: Recorder, rows: ir.Value, element: ir.Value) -> ir.Value:
        """The rows of a block, as many as others have."""
        rows.type = element.type
        if self.even and not self.trips.conditional:
            return op.Identity(rows)
        assert element.shape is not None
        missing = op.Sub(op.ints(self.size), op.Shape(rows, start=0, end=1))
        rank = element.shape.rank()
        before = op.ints(*(0 for _ in range(rank + 1)))
        widths = [before, missing, op.ints(*(0 for _ in range(rank)))] if rank else [before, missing]
        filled = op.Pad(rows, op.Concat(*widths, axis=0))
        filled.type, filled.shape = element.type, ir.Shape([self.size, *element.shape.dims])
        return filled

    def joined(self, stack: ir.Value, element: ir.Value, count: ir.Value) -> ir.Value:
        """The first ``count`` rows of all blocks."""
        op = self.op
        assert element.shape is not None
        dims = [int(d) for d in element.shape.dims if isinstance(d, int)]
        blocks = op.Shape(stack, start=0, end=1)
        every = op.Mul(blocks, op.ints(self.size))
        flat = op.Reshape(stack, op.Concat(every, op.ints(*dims), axis=0) if dims else every, allowzero=1)
        return flat if self.even and not self.trips.conditional else op.Slice(flat, op.ints(0), count, op.ints(0))
