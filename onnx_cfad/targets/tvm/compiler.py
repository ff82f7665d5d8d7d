"""What a build of TVM does for a worker, and the commands that every worker has because of it."""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from onnx_cfad.targets.tvm.commands import Arguments, Arrays, Refused, Result, command

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]
Function = Callable[[Sequence[Array]], list[Array]]


class Compiler(Protocol):
    """A build of TVM."""

    def versions(self) -> dict[str, Any]:
        """What it runs on."""
        ...

    def compile(self, model: Path, library: Path, shapes: Mapping[str, Shape], options: Mapping[str, Any]) -> None:
        """Compiles a model file to a shared library."""
        ...

    def load(self, library: Path) -> Function:
        """The function of a compiled library: inputs and outputs in the order of the model's."""
        ...


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a model: its name, the NumPy name of its element type, and its shape, None where it varies."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


def free_inputs(proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> list[Input]:
    """The inputs of a model that have no default, in its order; shapes that are given win over declared ones.

    Raises:
        Refused: An input is no tensor, or its rank is not known.
    """
    names = set(input_names(proto))
    return [_input(value, shapes) for value in proto.graph.input if value.name in names]


def input_names(proto: onnx.ModelProto) -> list[str]:
    """The names of the inputs of a model that have no default, in its order."""
    initialized = {tensor.name for tensor in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in initialized]


def _input(value: onnx.ValueInfoProto, shapes: Mapping[str, Shape]) -> Input:
    if not value.type.HasField("tensor_type"):
        raise Refused(f"input '{value.name}' is {value.type.WhichOneof('value')}, expected a tensor")
    tensor = value.type.tensor_type
    if value.name not in shapes and not tensor.HasField("shape"):
        raise Refused(f"the rank of input '{value.name}' is not known")
    declared = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    shape = tuple(shapes.get(value.name, declared))
    return Input(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)


def processors(tvm: Any) -> list[str]:
    """The processors that LLVM knows; it takes any other name without a word, and compiles for the oldest one."""
    codegen = importlib.import_module("tvm.target.codegen")
    return sorted(map(str, codegen.llvm_get_cpu_archlist(llvm_target(tvm, {}))))


def llvm_target(tvm: Any, options: Mapping[str, Any]) -> Any:
    """TVM's target of machine code for the processor that the options name, or for any."""
    processor = options.get("processor")
    return tvm.target.Target({"kind": "llvm", **({"mcpu": processor} if processor else {})})


def tuned_target(tvm: Any, options: Mapping[str, Any]) -> Any:
    """The same with the number of cores, which a search for schedules has to know."""
    processor = options.get("processor")
    cores = {"num-cores": int(os.environ.get("TVM_NUM_THREADS", "1"))}
    return tvm.target.Target({"kind": "llvm", **({"mcpu": processor} if processor else {}), **cores})


Version = tuple[str, int, int]


def version_of(path: str) -> Version:
    """What tells a file from a later one of the same name.

    Raises:
        Refused: There is no such file.
    """
    if not Path(path).is_file():
        raise Refused(f"there is no file {path}")
    status = Path(path).stat()
    return path, status.st_ino, status.st_mtime_ns


def offer(compiler: Compiler) -> None:
    """Enters the commands that run on ``compiler`` into the table."""
    loaded: dict[Version, Function] = {}

    def function(library: str) -> Function:
        version = version_of(library)
        if version not in loaded:
            loaded[version] = compiler.load(Path(library))
        return loaded[version]

    @command
    def versions(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """The versions of what the worker runs on."""
        return compiler.versions(), {}

    @command
    def processors_known(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """The names of the processors that LLVM compiles for."""
        return {"names": processors(importlib.import_module("tvm"))}, {}

    @command
    def compile_model(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """Compiles ``model`` to ``library``, for ``shapes``, with ``options``; how many seconds it took."""
        start = time.perf_counter()
        options = arguments.get("options", {})
        compiler.compile(Path(arguments["model"]), Path(arguments["library"]), arguments.get("shapes", {}), options)
        return {"seconds": time.perf_counter() - start}, {}

    @command
    def run_library(arguments: Arguments, arrays: Arrays) -> Result:
        """Runs ``library`` on arrays ``0``, ``1``, ... in the order of inputs, ``repeat`` times; results likewise."""
        run = function(arguments["library"])
        given = [arrays[str(index)] for index in range(len(arrays))]
        seconds: list[float] = []
        results: list[Array] = []
        for _ in range(int(arguments.get("repeat", 1))):
            start = time.perf_counter()
            results = run(given)
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}, {str(index): value for index, value in enumerate(results)}
