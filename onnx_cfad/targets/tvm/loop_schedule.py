"""Schedules one TIR function for a CPU core: cheap stages inlined, vectors inside, reductions in registers.

Runs in the worker. TVM's own CPU schedule leaves a reduction innermost, which LLVM may not reorder for floating point;
here the last spatial loop is the vector and the reduction goes around it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from onnx_cfad.targets.tvm.loop_tvm import s_tir, tirx, tvm, tvm_ffi
from onnx_cfad.targets.tvm.loop_views import vector_length

_CHEAP = 6  # loads of a stage that is computed again wherever it is read
_LONG = 4096  # terms of a sum that is computed in parts
_REGISTERS = 8  # accumulators of a tile


def scheduled(function: Any) -> Any:
    """``function`` in loops without blocks, scheduled as far as its form allows."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    with contextlib.suppress(RuntimeError, ValueError, IndexError):  # else as it came: slower, never wrong
        module = _Scheduling(module).run()
    passes = s_tir.transform
    lower = tvm.ir.transform.Sequential(
        [
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
            passes.LowerMatchBuffer(),
            passes.LowerOpaqueBlock(),
            tirx.transform.UnrollLoop(),
            passes.StmtSimplify(),
        ]
    )
    return lower(module)["main"]


class _Scheduling:
    def __init__(self, module: Any) -> None:
        self.schedule = s_tir.Schedule(module)

    def run(self) -> Any:
        for block in self.blocks():
            self.inline(block)
        for block in self.blocks():
            kinds = [v.iter_type for v in self.schedule.get(block).iter_vars]
            if tirx.IterVar.CommReduce in kinds:
                self.reduction(block)
            else:
                self.elementwise(block)
        return self.schedule.mod

    def blocks(self) -> list[Any]:
        root = self.schedule.get_sblock("root")
        return list(self.schedule.get_child_blocks(root))

    def inline(self, block: Any) -> None:
        """Computes a stage where it is read, when that costs nothing: few loads, no transcendental function."""
        loads, dear = _cost(self.schedule.get(block).body)
        if dear or loads > _CHEAP:
            return
        try:
            self.schedule.compute_inline(block)
        except RuntimeError:
            return

    def elementwise(self, block: Any) -> None:
        loops = self.schedule.get_loops(block)
        if not loops:
            return
        if len(loops) > 1 and _reads_as_it_writes(self.schedule.get(block)):
            loops = [self.schedule.fuse(*loops)]
        self.vectorise(loops[-1])

    def vectorise(self, loop: Any, longest: int = 32) -> Any:
        """Makes the inner part of ``loop`` a vector; the outer part comes back, None where nothing is left."""
        length = vector_length(self.extent(loop), longest)
        if length == 1:
            return loop
        if length == self.extent(loop):
            self.schedule.vectorize(loop)
            return None
        outer, inner = self.schedule.split(loop, [None, length])
        self.schedule.vectorize(inner)
        return outer

    def extent(self, loop: Any) -> Any:
        extent = self.schedule.get(loop).extent
        return int(extent) if isinstance(extent, tirx.IntImm) else extent

    def reduction(self, block: Any) -> None:
        """Rows i, columns j: (i, j) tiles of registers, the reduction around each tile."""
        schedule = self.schedule
        loops, kinds = schedule.get_loops(block), [v.iter_type for v in schedule.get(block).iter_vars]
        if len(loops) != len(kinds):
            return
        spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
        reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
        if not spatial:
            self.sum(block, reduced)
            return
        if any(not isinstance(self.extent(loop), int) for loop in spatial):
            return
        length = vector_length(self.extent(spatial[-1]), 32)
        part = self.part(reduced[-1])
        accumulator = schedule.cache_write(block, 0, "local") if part == 1 else None
        outer, inner = schedule.split(spatial[-1], [None, length])
        rows = self.extent(spatial[-2]) if len(spatial) > 1 else 1
        tile = next(t for t in range(max(1, _REGISTERS * 8 // max(length, 8)), 0, -1) if rows % t == 0)
        around, unrolled = spatial[:-1], []
        if tile > 1:
            row_outer, row_inner = schedule.split(spatial[-2], [None, tile])
            around, unrolled = [*spatial[:-2], row_outer], [row_inner]
        if accumulator is None:  # all tiles take a part of the sum before the next part is read
            first, last = schedule.split(reduced[-1], [None, part])
            reduced = [*reduced[:-1], first]
            schedule.reorder(*reduced, *around, outer, last, *unrolled, inner)
        else:
            schedule.reorder(*around, outer, *reduced, *unrolled, inner)
            schedule.reverse_compute_at(accumulator, outer)
            if length > 1:
                self.vectorise(schedule.get_loops(accumulator)[-1])
        if length > 1:
            schedule.vectorize(inner)
        for loop in unrolled:
            schedule.unroll(loop)
        initial = schedule.decompose_reduction(block, reduced[0])
        if unrolled and accumulator is not None:
            schedule.unroll(schedule.get_loops(initial)[-2])
            schedule.unroll(schedule.get_loops(accumulator)[-2])

    def part(self, loop: Any) -> int:
        """The length of the parts of a long sum, so that what is read of the operands stays in the cache; else 1."""
        extent = self.extent(loop)
        if not isinstance(extent, int) or extent < _LONG:
            return 1
        return next((p for p in (256, 200, 128, 100, 64) if extent % p == 0), 1)

    def sum(self, block: Any, reduced: list[Any]) -> None:
        """A reduction to one number: a vector of partial results, then those."""
        length = vector_length(self.extent(reduced[-1]), 16)
        if length > 1 and self.extent(reduced[-1]) > length:
            _, inner = self.schedule.split(reduced[-1], [None, length])
            parts = self.schedule.rfactor(inner, 0)
            self.reduction(parts)
            reduced = self.schedule.get_loops(block)
        self.schedule.decompose_reduction(block, reduced[0])


def _cost(body: Any) -> tuple[int, bool]:
    """The loads of a stage, and whether it calls a function."""
    loads, calls = 0, False

    def load(_: Any) -> None:
        nonlocal loads
        loads += 1

    def call(node: Any) -> None:
        nonlocal calls
        calls = calls or getattr(node.op, "name", "") not in ("tirx.if_then_else", "tirx.likely")

    tvm_ffi.structural_walk(body, ((tvm.ir.TensorLoad, load), (tvm.ir.Call, call)))
    return loads, calls


def _reads_as_it_writes(block: Any) -> bool:
    """Whether every buffer has the shape of the result and is read at the place that is written."""
    names = [v.var for v in block.iter_vars]
    fits = isinstance(block.body, tirx.BufferStore) and _is_at(block.body.indices, names)

    def load(node: Any) -> None:
        nonlocal fits
        written = block.body.buffer.shape
        fits = (
            fits
            and _is_at(node.indices, names)
            and all(
                bool(a == b) if isinstance(a, int) else a.same_as(b) or _equal(a, b)
                for a, b in zip(node.source.shape, written, strict=True)
            )
        )

    if fits:
        tvm_ffi.structural_walk(block.body, ((tvm.ir.TensorLoad, load),))
    return fits


def _is_at(indices: Any, names: Any) -> bool:
    return len(indices) == len(names) and all(i.same_as(n) for i, n in zip(indices, names, strict=True))


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) == int(b)
