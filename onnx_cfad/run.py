"""A model file and arrays in, arrays out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from onnx_cfad.arrays import check_npz_target, read_npz, write_npz
from onnx_cfad.errors import ModelError
from onnx_cfad.model import load
from onnx_cfad.ports import describe
from onnx_cfad.runtime import Session
from onnx_cfad.weights import files


def run_file(
    model: str | os.PathLike[str], inputs: str | os.PathLike[str], output: str | os.PathLike[str]
) -> dict[str, str]:
    """Runs a model in ONNX Runtime on the arrays of an .npz file and writes its outputs to another.

    Returns:
        The types and shapes of the outputs by name.

    Raises:
        ModelError: The model or the arrays are unusable or do not fit, or the output cannot be written.
        TargetError: ONNX Runtime refuses the model or cannot run it.
    """
    if str(output) == "-":
        raise ModelError("output '-'", "arrays are not written to standard output", "Name an .npz file.")
    check_npz_target(output, model, inputs, *files(load(model)))
    feeds = read_npz(inputs)
    results = Session(model).run(feeds)
    write_npz(output, results)
    return {name: _described(value) for name, value in results.items()}


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return describe("str" if array.dtype == object else array.dtype.name, array.shape)
