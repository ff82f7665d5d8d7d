"""Bodies of a host program as CUDA kernels: one source for all, and for each body its launches by signature."""

from __future__ import annotations

import dataclasses
import difflib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.saving import save
from onnx_cfad.targets.tvm.partition import Partition
from onnx_cfad.targets.tvm.signatures import Signature, digest
from onnx_cfad.targets.tvm.specialise import Met, declared, specialised

Array = np.ndarray[Any, Any]
Ask = Callable[[str, Mapping[str, Any]], tuple[dict[str, Any], dict[str, Array]]]
"""Runs a command of the Relax worker."""

_KERNEL = 'extern "C" __global__'


@dataclasses.dataclass
class Kernels:
    """What a program's bodies became.

    Attributes:
        preamble: What stands before the kernels.
        kernels: The text of each kernel, by name.
        bodies: For each body that runs on the GPU its launches by digest of signature.
        guarded: For each body the inputs whose values are part of its signature.
        constants: Arrays that the bodies read, by name.
        hosted: Why a body stays on the CPU.
    """

    preamble: str = ""
    kernels: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    bodies: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict[str, dict[str, Any]])
    guarded: dict[str, list[int]] = dataclasses.field(default_factory=dict[str, list[int]])
    constants: dict[str, Array] = dataclasses.field(default_factory=dict[str, Array])
    hosted: dict[str, str] = dataclasses.field(default_factory=dict[str, str])

    def source(self) -> str:
        """CUDA C of all kernels; "" where there is none."""
        return "\n".join([self.preamble, *self.kernels.values()]) if self.kernels else ""


def lower_bodies(
    parts: Partition, met: Mapping[str, Met], architecture: str, ask: Ask, prefix: str = "body"
) -> Kernels:
    """CUDA C and launches of every body, for the signatures that a run has met it with, else for its declared shapes.

    Args:
        parts: The program with its bodies.
        met: What the bodies meet.
        architecture: Such as ``sm_80``; the text depends on it little.
        ask: Runs a command of the Relax worker.
        prefix: What the names of kernels begin with.
    """
    made = Kernels()
    for number, (name, body) in enumerate(parts.bodies.items()):
        guarded, signatures = _signatures(body, met.get(name))
        if not signatures:
            made.hosted[name] = "it did not run on the sample inputs, and its shapes are not known without a run"
            continue
        made.guarded[name] = list(guarded)
        try:
            for position, signature in enumerate(signatures):
                _lower(made, name, body, signature, f"{prefix}_{number}_{position}", architecture, ask)
        except TargetError as error:
            made.hosted[name] = error.what
    return made


def _signatures(body: ir.Model, met: Met | None) -> tuple[Sequence[int], Sequence[Signature]]:
    """The inputs whose values are part of a signature, and the signatures that kernels are made for."""
    if met is not None:
        return met.guarded, list(met.counts)
    signature = declared(body)
    return (), [] if signature is None else [signature]


def _lower(
    made: Kernels, name: str, body: ir.Model, signature: Signature, prefix: str, architecture: str, ask: Ask
) -> None:
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as folder:
        path = Path(folder) / "body.onnx"
        save(specialised(body, signature, "relax"), path)
        answer, arrays = ask("cuda_source", {"model": str(path), "prefix": prefix, "arch": architecture})
    head, *texts = str(answer["source"]).split(_KERNEL)
    texts = [text for text in texts if "{" in text]  # not the declarations
    if texts:
        made.preamble = joined(made.preamble, head)
    kernels = [launch["kernel"] for launch in answer["launches"]]
    names = sorted(set(kernels))
    if len(names) != len(texts):
        raise TargetError("TVM Relax", f"it wrote {len(texts)} kernels and launches {len(names)}")
    for text in texts:
        kernel = next(k for k in names if f" {k}(" in text.partition("{")[0])
        made.kernels[kernel] = _KERNEL + text
    for buffer in answer["buffers"].values():
        if "constant" in buffer:
            key = f"{prefix}_constant_{buffer['constant']}"
            made.constants[key] = arrays[f"constant_{buffer['constant']}"]
            buffer["constant"] = key
    plan = {key: answer[key] for key in ("launches", "buffers", "inputs", "outputs")}
    made.bodies.setdefault(name, {})[digest(signature)] = plan


def joined(first: str, second: str) -> str:
    """Two preambles as one: TVM writes the same sections in the same order, and leaves out what no kernel needs."""
    lines = first.splitlines(keepends=True), second.splitlines(keepends=True)
    made: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes():
        made += lines[0][a:b] if kind == "equal" else [*lines[0][a:b], *lines[1][c:d]]
    return "".join(made)
