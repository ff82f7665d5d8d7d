"""A model file, or what was compiled from one, and arrays in, arrays out."""

from __future__ import annotations

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
from onnx_cfad.targets.compilation import compile_model, open_artifact
from onnx_cfad.weights import files


def run_file(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Runs a model, or an artifact, on the arrays of an .npz file and writes its outputs to another.

    Args:
        model: The file of a model, or the folder of an artifact.
        inputs: The .npz file of the inputs by name.
        output: The .npz file to write.
        target: What a model is compiled for first; default, and ``ort``: it runs in ONNX Runtime.
        tell: Called with what is being done.

    Returns:
        The types and shapes of the outputs by name.

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
    results = _run_artifact(model, feeds, target, tell) if compiled else _run_model(model, feeds, target, tell)
    write_npz(output, results)
    return {name: _described(value) for name, value in results.items()}


def _run_model(
    model: str | os.PathLike[str], feeds: Mapping[str, Any], target: str | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    if target in (None, "ort"):
        return Session(model).run(feeds)
    return compile_model(model, target, feeds=feeds, tell=tell).run(feeds)


def _run_artifact(
    folder: str | os.PathLike[str], feeds: Mapping[str, Any], target: str | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    artifact = open_artifact(folder)
    if target not in (None, artifact.manifest.target):
        what = f"it was compiled for the target {artifact.manifest.target}, not {target}"
        raise TargetError(str(folder), what, "Leave --target out.")
    tell(f"running {folder}")
    return artifact.run(feeds)


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return describe("str" if array.dtype == object else array.dtype.name, array.shape)
