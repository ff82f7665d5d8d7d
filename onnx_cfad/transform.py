"""A model file in, its differentiated form out: as a file, whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.errors import ModelError, PlanError
from onnx_cfad.model import load
from onnx_cfad.options import Options
from onnx_cfad.saving import save
from onnx_cfad.sizes import parse_bytes

PLANS = ("auto", "taped", "checkpointed")
"""The plans that have a name."""


def transform(
    source: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, options: Options | None = None
) -> tuple[Path, Gradient]:
    """Differentiates the model in a file and writes the result.

    Args:
        source: The model's file, which is never changed.
        output: The file to write; default: ``MODEL.grad.onnx`` beside the model.
        options: What to differentiate.

    Returns:
        Where the result is, and what it is.

    Raises:
        ModelError: The model is unusable, lacks a name that the options ask for, or the result cannot be written there.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    path = Path(source)
    target = path.with_name(f"{path.stem}.grad.onnx") if output is None else Path(output)
    model = load(path)
    _refuse_early(path, target)
    gradient = differentiate(model, options or Options())
    save(gradient.model, target, source=path)
    return target, gradient


def with_plan(
    options: Options,
    plan: str,
    *,
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    memory: str | None = None,
    trips: int | None = None,
) -> Options:
    """Options with a plan as the command line takes it; None leaves what ``options`` have.

    Args:
        options: The other options.
        plan: ``auto``, ``taped``, ``checkpointed``, or the path of a plan's JSON.
        sites: ``PATH=ADJOINT`` for single sites.
        segment: Iterations in a segment.
        levels: Levels of a checkpointed loop.
        memory: Bytes that tapes may take, such as ``512MiB``.
        trips: Iterations to assume where the model does not say.

    Raises:
        PlanError: The plan is no such word and no readable file, or the memory is no number.
    """
    named = plan in PLANS
    changes = {
        "plan": plan if named else "auto",
        "plan_text": None if named else _plan_text(Path(plan)),
        "sites": tuple(sites),
        "segment": segment,
        "levels": levels,
        "memory": None if memory is None else parse_bytes(memory),
        "trips": trips,
    }
    return dataclasses.replace(options, **{name: value for name, value in changes.items() if value is not None})


def _plan_text(path: Path) -> str:
    if not path.is_file():
        raise PlanError(
            f"plan '{path}'", f"expected {', '.join(PLANS)} or the file of a plan", "There is no such file."
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"plan '{path}'", f"cannot be read: {error}") from error


def _refuse_early(source: Path, target: Path) -> None:
    """What saving would refuse, before the work is done."""
    if target.is_dir():
        raise ModelError(str(target), "the output is a directory", "Name a file.")
    if not target.parent.is_dir():
        raise ModelError(str(target), "the folder of the output does not exist", "Make it first.")
    if target.exists() and target.samefile(source):
        raise ModelError(str(target), "the output is the input file", "Name another file; the input is never changed.")
