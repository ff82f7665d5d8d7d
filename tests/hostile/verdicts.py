"""What becomes of a mutated model: a message that says where, or a gradient that is as valid as the model itself."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

import onnx_cfad as cfad
from onnx_cfad.errors import CfadError
from onnx_cfad.inspection import inspect


def judge(path: pathlib.Path, feeds: Mapping[str, Any]) -> str:
    """``refused``, ``suspected`` (refused, and the message owns up to a possible bug) or ``differentiated``.

    Args:
        path: The file of a model, perhaps broken.
        feeds: Inputs of the model that it was made from.

    Raises:
        AssertionError: The message does not say where, or the gradient is invalid though the model is valid and runs.
        Exception: What no user may meet.
    """
    content = path.read_bytes()
    try:
        gradient = cfad.vjp(path).proto().SerializeToString()
    except CfadError as error:
        return _refusal(error)
    finally:
        assert path.read_bytes() == content
    written = onnx.ModelProto.FromString(gradient)
    source = onnx.ModelProto.FromString(content)
    if not is_valid(written) and is_valid(source) and _runs(source, feeds):
        onnx.checker.check_model(written, full_check=True)
    return "differentiated"


def look_at(path: pathlib.Path) -> None:
    """Plans, inspects and differentiates forwards; only a message that says where is let pass."""
    for command in (cfad.plan, inspect, cfad.jvp):
        try:
            command(path)
        except CfadError as error:  # noqa: PERF203
            _refusal(error)


def _refusal(error: CfadError) -> str:
    assert error.where, str(error)
    assert error.what, str(error)
    suspected = "a bug" in error.what
    assert not suspected or error.__cause__ is not None
    return "suspected" if suspected else "refused"


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether the checker of onnx accepts a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # noqa: BLE001 - it stumbles too
        return False
    return True


def _runs(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> bool:
    """Whether a model runs, and what goes in and comes out is as it declares; runtimes only warn where it is not."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results = dict(zip([output.name for output in model.graph.output], session.run(None, dict(feeds)), strict=True))
    except Exception:  # noqa: BLE001 - its exceptions have no common class
        return False
    declared = {value.name: value.type.tensor_type for value in (*model.graph.input, *model.graph.output)}
    return all(_fits(declared[name], value) for name, value in {**feeds, **results}.items())


def _fits(declared: onnx.TypeProto.Tensor, value: Any) -> bool:
    if isinstance(value, list) or not declared.HasField("shape"):
        return True
    dims, shape = declared.shape.dim, np.shape(value)
    pairs = zip(dims, shape, strict=False)
    return len(dims) == len(shape) and all(not d.HasField("dim_value") or d.dim_value == n for d, n in pairs)
