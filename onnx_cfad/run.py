"""A model file, or what was compiled from one, and arrays in, arrays out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnx_cfad.arrays import check_npz_target, read_npz, write_npz
from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.model import load
from onnx_cfad.ports import describe
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Artifact
from onnx_cfad.targets.compilation import compile_model, open_artifact
from onnx_cfad.weights import files


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run gave.

    Attributes:
        outputs: The types and shapes of the outputs by name.
        compiled: Bodies of an artifact that this run compiled, because it was the first to meet them.
    """

    outputs: dict[str, str]
    compiled: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.outputs.items()]
        return "\n".join([*lines, *(f"compiled on first use: {name}" for name in self.compiled)])


def run_file(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Ran:
    """Runs a model, or an artifact, on the arrays of an .npz file and writes its outputs to another.

    Args:
        model: The file of a model, or the folder of an artifact.
        inputs: The .npz file of the inputs by name.
        output: The .npz file to write.
        target: What a model is compiled for first; default, and ``ort``: it runs in ONNX Runtime.
        tell: Called with what is being done.

    Raises:
        ModelError: The model or the arrays are unusable or do not fit, or the output cannot be written.
        TargetError: The target is not there, refuses the model or cannot run it.
        ValidationError: The target and ONNX Runtime differ.
    """
    if str(output) == "-":
        raise ModelError("output '-'", "arrays are not written to standard output", "Name an .npz file.")
    compiled = Path(model).is_dir()
    check_npz_target(output, inputs, *([] if compiled else [model, *files(load(model))]))
    feeds = read_npz(inputs)
    if compiled:
        artifact = _opened(model, target)
        tell(f"running {model}")
        results = artifact.run(feeds)
    else:
        artifact, results = None, _run_model(model, feeds, target, tell)
    write_npz(output, results)
    described = {name: _described(value) for name, value in results.items()}
    return Ran(described, () if artifact is None else tuple(artifact.compiled_on_use))


def _run_model(
    model: str | os.PathLike[str], feeds: Mapping[str, Any], target: str | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    if target in (None, "ort"):
        return Session(model).run(feeds)
    return compile_model(model, target, feeds=feeds, tell=tell).run(feeds)


def _opened(folder: str | os.PathLike[str], target: str | None) -> Artifact:
    artifact = open_artifact(folder)
    if target not in (None, artifact.manifest.target):
        what = f"it was compiled for the target {artifact.manifest.target}, not {target}"
        raise TargetError(str(folder), what, "Leave --target out.")
    return artifact


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return describe("str" if array.dtype == object else array.dtype.name, array.shape)
