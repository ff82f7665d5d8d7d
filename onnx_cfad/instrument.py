"""A model that also counts: outcomes of every If and iterations of every loop, as two further outputs.

Every region gives a vector of sums and a vector of maxima. An If hands out those of the branch that was taken and zeros
for the other; a loop stacks those of its iterations and reduces them. The vectors are int64 and as long as there are
sites below: 8 bytes a counter, and as many for each iteration of a loop while it runs.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.adjoint.extend import extend_loop
from onnx_cfad.graph.regions import ControlFlowGraph, Region, Site, branch_site, is_branch, is_loop, loop_site
from onnx_cfad.names import Namer

Counter = tuple[str, str]
"""A site's path, and what is counted: "then", "else", "executions", "iterations" or "most"."""


@dataclasses.dataclass(frozen=True)
class Counters:
    """What the further outputs hold.

    Attributes:
        sums: Counters to be added up over runs, in the order of the output ``sums_name``.
        maxima: Counters of which the largest counts, in the order of the output ``maxima_name``.
        sums_name: The output that holds the sums; "" where there is nothing to count.
        maxima_name: The output that holds the maxima; "" where there is no loop.
    """

    sums: tuple[Counter, ...]
    maxima: tuple[Counter, ...]
    sums_name: str
    maxima_name: str


@dataclasses.dataclass
class _Counts:
    """The counters of a region, in vectors that lie end to end."""

    sums: list[Expr] = dataclasses.field(default_factory=list[Expr])
    maxima: list[Expr] = dataclasses.field(default_factory=list[Expr])
    sum_keys: list[Counter] = dataclasses.field(default_factory=list[Counter])
    maximum_keys: list[Counter] = dataclasses.field(default_factory=list[Counter])


def add_counters(model: ir.Model, sites: ControlFlowGraph) -> Counters:
    """Adds counters to ``model`` in place, as further outputs; ``sites`` are its control flow.

    The nodes of loops are replaced, so that ``sites`` is out of date afterwards.
    """
    return _Instrumentation(model).run(sites.root)


class _Instrumentation:
    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.namer = Namer.of_model(model)
        self.opset = model.opset_imports[""]

    def run(self, root: Region) -> Counters:
        builder = Builder(self.namer, self.opset)
        counts = self.region(root, builder)
        outputs = [self.output(builder, parts, name) for parts, name in self.vectors(counts)]
        builder.append_to(self.graph)
        self.graph.outputs.extend(value for value in outputs if value is not None)
        names = ["" if value is None else value.name or "" for value in outputs]
        return Counters(tuple(counts.sum_keys), tuple(counts.maximum_keys), names[0], names[1])

    def vectors(self, counts: _Counts) -> list[tuple[list[Expr], str]]:
        return [(counts.sums, "profile.sums"), (counts.maxima, "profile.maxima")]

    def output(self, builder: Builder, parts: list[Expr], name: str) -> ir.Value | None:
        if not parts:
            return None
        value = builder.fresh_identity(concat(parts).value)
        value.name, value.shape = self.namer.fresh(name), ir.Shape([None])
        return value

    def region(self, region: Region, builder: Builder) -> _Counts:
        """Counts in one region; what it records goes to the end of the region's graph."""
        counts = _Counts()
        for site in region.sites:
            if is_branch(site.node):
                self.branch(site, builder, counts)
            elif is_loop(site.node):
                self.loop(site, builder, counts)
        return counts

    def branch(self, site: Site, builder: Builder, counts: _Counts) -> None:
        taken = op.Cast(builder.expr(branch_site(site.node).predicate).reshape([1]), to=int(ir.DataType.INT64))
        taken.value.shape = ir.Shape([1])
        counts.sums += [taken, builder.constant(np.ones(1, np.int64)) - taken]
        counts.sum_keys += [(site.path, "then"), (site.path, "else")]
        builders = [builder.child() for _ in site.regions]
        inner = [self.region(region, own) for region, own in zip(site.regions, builders, strict=True)]
        for kind in ("sums", "maxima"):
            vectors = [getattr(found, kind) for found in inner]
            lengths = [len(_keys(found, kind)) for found in inner]
            if any(lengths):
                handed = self.hand_out(site, builders, vectors, lengths)
                getattr(counts, kind).append(builder.expr(handed))
        for found in inner:
            counts.sum_keys += found.sum_keys
            counts.maximum_keys += found.maximum_keys
        for region, own in zip(site.regions, builders, strict=True):
            own.append_to(region.graph)

    def hand_out(self, site: Site, builders: list[Builder], vectors: list[list[Expr]], lengths: list[int]) -> ir.Value:
        """An output of the If that holds the counters of both branches: zeros for the one that was not taken."""
        node = site.node
        for side, (region, builder) in enumerate(zip(site.regions, builders, strict=True)):
            parts = [
                concat(vectors[k]) if k == side and vectors[k] else builder.constant(np.zeros(length, np.int64))
                for k, length in enumerate(lengths)
                if length
            ]
            region.graph.outputs.append(builder.fresh_identity(concat(parts).value))
        node.resize_outputs(len(node.outputs) + 1)
        output = node.outputs[-1]
        output.name, output.type = self.namer.fresh("profile.branch"), ir.TensorType(ir.DataType.INT64)
        output.shape = ir.Shape([sum(lengths)])
        return output

    def loop(self, site: Site, builder: Builder, counts: _Counts) -> None:
        body, own = loop_site(site.node).body, builder.child()
        inner = self.region(site.regions[0], own)
        one = own.constant(np.ones(1, np.int64))
        elements = [own.fresh_identity(concat([one, *inner.sums]).value)]
        elements += [own.fresh_identity(concat(inner.maxima).value)] if inner.maxima else []
        lengths = [1 + len(inner.sum_keys), len(inner.maximum_keys)]
        for element, length in zip(elements, lengths, strict=False):
            element.shape = ir.Shape([length])
        own.append_to(body)
        stacked = extend_loop(site.node, [], elements, ir.SymbolicDim(None), self.namer).stacked
        rows = [concat([builder.constant(np.zeros([1, n], np.int64)), builder.expr(x)])
                for x, n in zip(stacked, lengths, strict=False)]  # fmt: skip
        total = op.ReduceSum(rows[0], [0], keepdims=0)
        counts.sums += [builder.constant(np.ones(1, np.int64)), total]
        counts.sum_keys += [(site.path, "executions"), (site.path, "iterations"), *inner.sum_keys]
        counts.maxima.append(op.Slice(total, [0], [1], [0]))
        counts.maximum_keys.append((site.path, "most"))
        if inner.maxima:
            counts.maxima.append(op.ReduceMax(rows[1], [0], keepdims=0))
            counts.maximum_keys += inner.maximum_keys


def _keys(counts: _Counts, kind: str) -> list[Counter]:
    return counts.sum_keys if kind == "sums" else counts.maximum_keys
