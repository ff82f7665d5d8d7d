"""The command of a Relax worker that writes CUDA C."""

from __future__ import annotations

import importlib
from pathlib import Path

import onnx

from onnx_cfad.targets.tvm.commands import Arguments, Arrays, Result, command


@command
def cuda_source(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
    """CUDA C of the file ``model`` for ``arch``, kernels named ``prefix``...; its launches, and constants as arrays."""
    kernels = importlib.import_module("onnx_cfad.targets.cuda.relax_kernels")  # which imports TVM
    made = kernels.source_of(onnx.load(Path(arguments["model"])), str(arguments["prefix"]), str(arguments["arch"]))
    constants = made.pop("constants")
    return made, {f"constant_{k}": value for k, value in enumerate(constants)}
