"""Relax, of the current TVM: an ONNX file to a shared library, and that to a function. Runs in the child alone."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.compiler import Array, Shape, free_inputs, llvm_target, tuned_target
from onnx_cfad.targets.tvm.schedule_search import Scheduler, Task, database

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "numpy")
_CRASHES_FROM = (0, 1, 15)
_LOOPS = ("Loop", "Scan")  # not known to Relax's importer


class Relax:
    """The compiler of the current TVM; a model with loops becomes one function, see ``loop_library``."""

    def versions(self) -> dict[str, Any]:
        """What this runs on."""
        tvm = _tvm()
        return {
            "tvm": tvm.__version__,
            "processor": str(importlib.import_module("tvm.target.codegen").llvm_get_system_cpu()),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        }

    def compile(self, model: Path, library: Path, shapes: Mapping[str, Shape], options: Mapping[str, Any]) -> None:
        """Compiles a model file to a shared library.

        Args:
            model: The ONNX file; legalised.
            library: Where the library goes.
            shapes: The shape of each input that the file does not fix; None for a dimension that varies.
            options: ``processor``, LLVM's name; ``schedules``, a folder of records that a search has found.

        Raises:
            Refused: Relax cannot take the model.
        """
        tvm = _tvm()
        proto = onnx.load(model)
        if any(node.op_type in _LOOPS for node in proto.graph.node):
            _whole_loops().build(proto, library, shapes, llvm_target(tvm, options))
            return
        if options.get("schedules"):
            target = tuned_target(tvm, options)
            with target, database(self.scheduler(), options["schedules"]):
                module = tvm.relax.transform.MetaScheduleApplyDatabase()(self._fused(proto, shapes, target))
                built = tvm.compile(module, target=target)
        else:
            built = tvm.compile(self._imported(proto, shapes), target=llvm_target(tvm, options))
        temporary = library.with_name(f".{library.stem}.{os.getpid()}.so")
        built.export_library(str(temporary))
        temporary.replace(library)

    def scheduler(self) -> Scheduler:
        """What a search for schedules needs."""
        tvm = _tvm()
        return Scheduler(
            "tvm.s_tir.meta_schedule", "tvm.s_tir.tensor_intrin", self._tasks,
            target=lambda options: tuned_target(tvm, options), tensor=tvm.runtime.tensor, why_not=self._why_not_search,
        )  # fmt: skip

    def _why_not_search(self) -> str:
        found = importlib.metadata.version("apache-tvm-ffi")
        if tuple(map(int, found.split(".")[:3])) < _CRASHES_FROM:
            return ""
        text = f"apache-tvm-ffi {found} crashes where a search for schedules writes a program as JSON"
        return f"{text}; before {'.'.join(map(str, _CRASHES_FROM))} it does not. Run: onnx-cfad targets install relax"

    def _tasks(self, model: Path, shapes: Mapping[str, Shape], options: Mapping[str, Any]) -> list[Task]:
        """The kernels of a model; a loop that is one function has none that are known here."""
        proto = onnx.load(model)
        if any(node.op_type in _LOOPS for node in proto.graph.node):
            return []
        target = tuned_target(_tvm(), options)
        integration = importlib.import_module("tvm.s_tir.meta_schedule.relax_integration")
        found = integration.extract_tasks(self._fused(proto, shapes, target), target, {})
        return [Task(str(task.task_name), int(task.weight), task.dispatched[0]) for task in found]

    def _imported(self, proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Any:
        inputs = free_inputs(proto, shapes)
        _fix_shapes(proto, {i.name: i.shape for i in inputs})
        module = importlib.import_module("tvm.relax.frontend.onnx").from_onnx(proto)
        parameters = len(module["main"].params)
        if parameters != len(inputs):
            raise Refused(f"Relax made {parameters} inputs of {len(inputs)}")
        return module

    def _fused(self, proto: onnx.ModelProto, shapes: Mapping[str, Shape], target: Any) -> Any:
        """The module as TVM's default pipeline has it before it lowers: a function for each kernel."""
        passes = _tvm().relax.transform
        names = ("LegalizeOps", "AnnotateTIROpPattern", "FoldConstant", "FuseOps", "FuseTIR")
        with target:
            sequence = _tvm().transform.Sequential([getattr(passes, name)() for name in names])
            return sequence(self._imported(proto, shapes))

    def load(self, library: Path) -> _Function:
        """The function of a compiled library: inputs and outputs in the order of the model's."""
        loops = _whole_loops()
        return loops.WholeLoop(library) if loops.is_whole_loop(library) else _Function(library)


class _Function:
    """A function of Relax's virtual machine."""

    def __init__(self, library: Path) -> None:
        tvm = _tvm()
        self._device = tvm.cpu()
        machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(library)), self._device)
        self._main = machine["main"]
        self._inputs: dict[tuple[tuple[int, ...], ...], list[Any]] = {}

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        inputs = self._buffers(arrays)
        for buffer, array in zip(inputs, arrays, strict=True):
            np.from_dlpack(buffer)[...] = array
        result = self._main(*inputs)
        # A copy: a result may lie in an input's buffer, which the next call writes to.
        return [value.numpy().copy() for value in ([result] if hasattr(result, "numpy") else result)]

    def _buffers(self, arrays: Sequence[Array]) -> list[Any]:
        """A tensor for each input, made when its shape is met first."""
        key = tuple([array.shape for array in arrays])
        if key not in self._inputs:
            self._inputs[key] = [_tvm().runtime.tensor(np.array(array), self._device) for array in arrays]
        return self._inputs[key]


def _fix_shapes(proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
    """Declares the shapes of inputs; a dimension that varies keeps its name, or gets one of its own."""
    for index, value in enumerate(proto.graph.input):
        for axis, size in enumerate(shapes.get(value.name, ())):
            dims = value.type.tensor_type.shape.dim
            dim = dims[axis] if axis < len(dims) else dims.add()
            if size is not None:
                dim.dim_value = size
            elif not dim.dim_param:
                dim.dim_param = f"n{index}_{axis}"


def _whole_loops() -> Any:
    """The functions for models with loops, which import TVM."""
    return importlib.import_module("onnx_cfad.targets.tvm.loop_library")


@functools.cache
def _tvm() -> Any:
    """TVM with its Relax part."""
    importlib.import_module("tvm.relax")
    return importlib.import_module("tvm")
