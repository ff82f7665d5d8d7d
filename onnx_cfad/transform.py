"""A model file in, its differentiated form out: as a file, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from onnx_cfad.differentiate import Gradient
from onnx_cfad.errors import ModelError
from onnx_cfad.forward import derive
from onnx_cfad.model import load
from onnx_cfad.options import Options
from onnx_cfad.saving import check_target, save
from onnx_cfad.suffixes import check_suffix

_SUFFIX = {"reverse": "grad", "forward": "jvp", "hvp": "hvp"}


def transform(
    source: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, options: Options | None = None
) -> tuple[Path, Gradient]:
    """Differentiates the model in a file and writes the result.

    Args:
        source: The model's file, which is never changed.
        output: The file to write; default: ``MODEL.grad.onnx`` (``.jvp``, ``.hvp`` by mode) beside it.
        options: What to differentiate.

    Returns:
        Where the result is, and what it is.

    Raises:
        ModelError: The model is unusable, lacks a name that the options ask for, or the result cannot be written there.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    path, chosen = Path(source), options or Options()
    model = load(path)
    target = path.with_name(f"{path.stem}.{_SUFFIX[chosen.mode]}.onnx") if output is None else Path(output)
    if str(target) == "-":
        raise ModelError("output '-'", "a model is not written to standard output", "Name a file.")
    check_target(target, path)  # before the work is done
    check_suffix(target, "model")
    gradient = derive(model, chosen)
    save(gradient.model, target, source=path)
    return target, gradient
