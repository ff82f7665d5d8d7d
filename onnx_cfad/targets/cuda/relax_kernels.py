"""A straight-line model as CUDA C by Relax, with the launches that compute it. Runs in a worker's child.

A model becomes fused functions in order; each is scheduled for a GPU and split by TVM into a host part, which is read
here as launches, and kernels. All shapes are numbers, so every grid and block is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnx_cfad.targets.tvm import loop_graph as graphs
from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_kernels import Kernel, is_array, kernels_of
from onnx_cfad.targets.tvm.loop_tvm import s_tir, tirx, tvm, tvm_ffi
from onnx_cfad.targets.tvm.loop_views import Array, rewritten

_LARGE = 4096  # elements of a product that is worth tiles in shared memory
_AXES = {
    f"{kind}.{axis}": (key, k)
    for kind, key in (("blockIdx", "grid"), ("threadIdx", "block"))
    for k, axis in enumerate("xyz")
}
_S_TIR_BEFORE = (
    "CanonicalizeLoop", "LowerCrossThreadReduction", "LowerInitBlock", "PlanAndUpdateBufferAllocationLocation",
    "ConvertBlocksToOpaque", "LiftThreadBinding", "ManifestSharedMemoryLocalStage", "CompactBufferAllocation",
    "LowerAutoCopy", "UnifyThreadBinding", "LowerMatchBuffer", "StmtSimplify", "InjectPermutedLayout",
    "AnnotateIrregularLoop", "InjectSoftwarePipeline", "TransformMmaBufferLayout", "LowerOpaqueBlock",
)  # fmt: skip


def source_of(model: onnx.ModelProto, prefix: str, arch: str) -> dict[str, Any]:
    """What computes ``model`` on a GPU.

    Args:
        model: Straight-line, with the shapes of its inputs.
        prefix: What the names of its kernels begin with.
        arch: ``sm_80`` or another.

    Returns:
        ``source`` (CUDA C), ``launches`` in order (``kernel``, ``arguments``, ``grid``, ``block``, ``shared_bytes``),
        ``buffers`` (element type and shape by name), ``inputs`` and ``outputs`` (names of buffers), ``constants``.

    Raises:
        Refused: Relax does not import a node, or a function is none for a GPU.
    """
    model = graphs.with_plain_names(model)
    inputs = graphs.free_inputs(model)
    for value in inputs:
        dims = graphs.dims(value)
        if dims is None or any(not isinstance(d, int) for d in dims):
            raise Refused(f"the shape of input '{value.name}' is open")
    kernels = kernels_of(model, lambda function: function)
    plan = _Plan(prefix, _target(arch))
    names = {v.name: plan.buffer("in", graphs.element_type(v), graphs.dims(v) or ()) for v in inputs}
    order = [names[value.name] for value in inputs]
    for number, kernel in enumerate(kernels.calls):
        plan.add(number, kernel, names)
    outputs = [plan.constant(o) if is_array(o) else names[o] for o in kernels.outputs]
    return {
        "source": plan.source(),
        "launches": plan.launches,
        "buffers": plan.buffers,
        "inputs": order,
        "outputs": outputs,
        "constants": plan.constants,
    }


class _Plan:
    """Kernels and launches of one model."""

    def __init__(self, prefix: str, target: Any) -> None:
        self.prefix, self.target = prefix, target
        self.buffers: dict[str, dict[str, Any]] = {}
        self.launches: list[dict[str, Any]] = []
        self.constants: list[Array] = []
        self.device: dict[str, Any] = {}

    def buffer(self, kind: str, dtype: str, shape: Sequence[Any]) -> str:
        name = f"{kind}{len(self.buffers)}"
        self.buffers[name] = {"dtype": dtype, "shape": [int(d) for d in shape]}
        return name

    def constant(self, value: Array) -> str:
        name = self.buffer("constant", value.dtype.name, value.shape)
        self.buffers[name]["constant"] = len(self.constants)
        self.constants.append(value)
        return name

    def add(self, number: int, kernel: Kernel, names: dict[str, str]) -> None:
        """Adds one fused function."""
        for result, shape, dtype in zip(kernel.results, kernel.shapes, kernel.dtypes, strict=True):
            if any(not isinstance(d, int) for d in shape):
                raise Refused("a result whose shape depends on a value")
            names[result] = self.buffer("value", dtype, shape)
        operands = [self.constant(o) if is_array(o) else names[o] for o in kernel.operands]
        given = [*operands, *(names[result] for result in kernel.results)]
        name = f"{self.prefix}_{number}"
        host, device = _split(kernel.function, name, self.target, _elements(kernel) >= _LARGE)
        places = dict(zip(host.params, given, strict=True))
        self.read(host.body, places, device)

    def read(self, body: Any, places: dict[Any, str], device: Mapping[str, Any]) -> None:
        """The launches in the host part of a function; anything else that it does is refused."""
        pending = [body]
        while pending:
            statement = pending.pop(0)
            if isinstance(statement, tirx.SeqStmt):
                pending[:0] = list(statement.seq)
            elif isinstance(statement, tirx.AllocBuffer):
                made = statement.buffer
                places[made] = self.buffer("space", str(made.dtype), [int(d) for d in made.shape])
            elif isinstance(statement, tirx.DeclBuffer):
                places[statement.buffer] = places[_buffer_of(statement.data)]
            elif isinstance(statement, tirx.AttrStmt):
                pending.insert(0, statement.body)
            elif isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tvm.ir.Call):
                self.launch(statement.value, places, device)
            elif not isinstance(statement, tirx.Evaluate):
                raise Refused("a function with a part that is not scheduled for a GPU")

    def launch(self, call: Any, places: Mapping[Any, str], device: Mapping[str, Any]) -> None:
        if call.op.name != "tirx.call_ffi_kernel":
            raise Refused(f"a function that calls {call.op.name}")
        name = str(call.args[0].value)
        kernel = device[name]
        tags = [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]
        count = len(kernel.params)
        extents = [int(value) for value in call.args[1 + count :]]
        sizes: dict[str, Any] = {"grid": [1, 1, 1], "block": [1, 1, 1]}
        shared = 0
        for tag, extent in zip(tags, extents, strict=True):
            if tag in _AXES:
                key, axis = _AXES[tag]
                sizes[key][axis] = extent
            else:
                shared = extent
        given = [places[_buffer_of(value)] for value in call.args[1 : 1 + count]]
        self.device[name] = kernel
        self.launches.append({"kernel": name, "arguments": given, **sizes, "shared_bytes": shared})

    def source(self) -> str:
        """CUDA C of all kernels, in the order of their names, so that the same model gives the same text."""
        if not self.device:
            return ""
        module = tvm.IRModule({name: self.device[name] for name in sorted(self.device)})
        module = s_tir.pipeline.finalize_device_passes()(tirx.transform.BF16StorageLegalize()(module))
        return str(tvm.get_global_func("target.build.cuda")(module, self.target).inspect_source())


def _split(function: Any, name: str, target: Any, tiles: bool) -> tuple[Any, dict[str, Any]]:
    """The host part and the kernels of one function."""
    module = tvm.IRModule({name: function.with_attr("global_symbol", name)})
    gpu = s_tir.dlight.gpu
    rules = [*([gpu.Matmul(), gpu.GEMV()] if tiles else []), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
    with target:
        module = s_tir.dlight.ApplyDefaultSchedule(*rules)(module)
        module = tirx.transform.BindTarget(target)(module)
        module = tvm.ir.transform.Sequential([make() for make in _passes()])(module)
    host, device = None, {}
    for symbol, made in module.functions.items():
        if str(made.attrs["target"].kind) == "cuda" and "tirx.kernel_launch_params" in made.attrs:
            device[symbol.name_hint] = made
        else:
            host = made
    if host is None or not device:
        raise Refused("a function without a kernel")
    return host, device


def _passes() -> list[Callable[[], Any]]:
    """TVM's lowering up to the split into host and device; the rest of its pipeline packs the host part for the CPU."""
    t, s = tirx.transform, s_tir.transform
    return [
        *(getattr(s, name) for name in _S_TIR_BEFORE),
        lambda: t.prim_func_pass(_selected, opt_level=0),
        *(t.FlattenBuffer, t.BF16ComputeLegalize, lambda: t.NarrowDataType(32), s.LoopPartition, t.VectorizeLoop),
        *(s.InjectVirtualThread, s.InjectDoubleBuffer, t.StorageRewrite, s.HoistIfThenElse, t.UnrollLoop),
        *(s.RenormalizeSplitPattern, t.StmtSimplify, t.RemoveNoOp, s.RewriteUnsafeSelect, t.CommonSubexprElim),
        *(t.FP8ComputeLegalize, t.VerifyMemory, t.AnnotateEntryFunc),
        *((lambda scope=scope: s.ThreadSync(scope)) for scope in ("shared", "shared.dyn", "warp")),
        *(s.InferFragment, s.LowerThreadAllreduce, s.MergeSharedMemoryAllocations, t.SplitHostDevice),
    ]


def _selected(function: Any, module: Any, context: Any) -> Any:  # noqa: ARG001
    """Both sides of a choice by a value in memory (ONNX's Where) are computed, then one is selected: no branch.

    TVM would load and compute each side where it is chosen, which makes threads of a warp part. A choice by indices
    alone stays: it may guard a load.
    """

    def both(choice: Any) -> Any:
        sides = [choice.true_value, choice.false_value]
        if not _reads(choice.condition):
            return choice
        names = [tirx.Var(f"side_{k}", str(side.ty)) for k, side in enumerate(sides)]
        asked = tirx.Var("asked", str(choice.condition.ty))
        chosen = tirx.Let(asked, choice.condition, tirx.Select(asked, *names))
        return tirx.Let(names[0], sides[0], tirx.Let(names[1], sides[1], chosen))

    return function.with_body(rewritten(function.body, tirx.Select, both))


def _reads(expression: Any) -> bool:
    found: list[Any] = []

    def seen(load: Any) -> None:
        found.append(load)

    tvm_ffi.structural_walk(expression, ((tvm.ir.TensorLoad, seen),))
    return bool(found)


def _elements(kernel: Kernel) -> int:
    return max(int(np.prod(shape, dtype=np.int64)) for shape in kernel.shapes)


def _buffer_of(pointer: Any) -> Any:
    """The buffer whose data a pointer is."""
    found: list[Any] = []

    def seen(variable: Any) -> None:
        found.append(variable)

    tvm_ffi.structural_walk(pointer, ((tvm.ir.Var, seen),))
    if len(found) != 1:
        raise Refused("a kernel with an argument that is no buffer")
    return found[0]


def _target(arch: str) -> Any:
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return tvm.target.Target({"kind": "cuda", "arch": arch, **limits}, host="llvm")
