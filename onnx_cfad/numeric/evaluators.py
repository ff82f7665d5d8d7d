"""What computes the primal for numerical differentiation: float64 where something can, the model's own type else."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnx_preview_training.op_adam import Adam as TrainingAdam

from onnx_cfad.errors import TargetError
from onnx_cfad.numeric.lower import lower
from onnx_cfad.numeric.widen import widen
from onnx_cfad.ports import type_name
from onnx_cfad.runtime import Session

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Any]

_FLOAT64_RUNTIME, _FLOAT64_REFERENCE = "float64 in ONNX Runtime", "float64 in the reference evaluator"

_NODE_RUNS = 20_000
"""An evaluation with more node executions takes the reference evaluator seconds."""

_AGREEMENT = {"float64": 1e-6, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
"""How far the float64 outputs may be from those of the model as it is, relative to the largest."""

EPSILON = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The rounding error of one operation, by element type."""

_REFERENCE_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """A way to compute the primal.

    Attributes:
        name: What it is, for the reader.
        epsilon: The rounding error of one operation.
        remarks: Why it is not a more exact one.
        run: Outputs by name from inputs by name.
        deviation: How far rounding in the model's own types moves its outputs from these, relative to the largest.
    """

    name: str
    epsilon: float
    remarks: tuple[str, ...]
    run: Callable[[Arrays], dict[str, Any]]
    deviation: float = 0.0


def choose_evaluator(model: ir.Model, feeds: Arrays, expected: Arrays, *, threads: int | None = None) -> Evaluator:
    """The most exact evaluator that runs ``model`` and gives what the model gives in its own types.

    Args:
        model: The primal, with every value that will be varied an input; not changed.
        feeds: Inputs to try it on, in the model's own types.
        expected: What the model gives on them in its own types.
        threads: Threads inside an operator of ONNX Runtime.
    """
    remarks: list[str] = []
    wide = model.clone()
    exact = widen(wide)
    candidates = {_FLOAT64_RUNTIME: _float64_runtime, _FLOAT64_REFERENCE: _float64_reference} if exact else {}
    if not exact:
        remarks.append("float64 is not possible: the standard fixes an operator of the model to float32")
    for name, make in candidates.items():
        try:
            evaluator = make(wide, threads)
            found = evaluator.run(feeds)
        except (TargetError, *_REFERENCE_ERRORS) as error:
            reason = error.what if isinstance(error, TargetError) else str(error)
            remarks.append(f"{name} is not possible: {' '.join(reason.split())[:200]}")
            continue
        difference = deviation(found, expected)
        rounded = _rounded_output(evaluator, feeds, found)
        if difference.conflict is None and rounded is None:
            return dataclasses.replace(evaluator, remarks=tuple(remarks), deviation=difference.relative)
        conflict = f"takes another path: {difference.conflict}" if difference.conflict else f"computes {rounded}"
        remarks.append(f"{name} {conflict}")
    return dataclasses.replace(_own_type(model, feeds, threads), remarks=tuple(remarks))


def _rounded_output(evaluator: Evaluator, feeds: Arrays, found: Arrays) -> str | None:
    """The output that a kernel for float64 computes in float32 all the same, as ONNX Runtime's Shrink does.

    At another point, the elements that moved all have the digits of float32 and not fewer (as whole numbers have).
    """
    rng = np.random.default_rng(0)
    moved = {name: _shaken(value, rng) for name, value in widened(feeds).items()}
    try:
        there = evaluator.run(moved)
    except TargetError:
        return None
    for name, before in found.items():
        a, b = np.asarray(before), np.asarray(there[name])
        if a.dtype.name in EPSILON and a.dtype != np.float64:
            return f"output '{name}' in {a.dtype.name}"
        if isinstance(before, list) or a.dtype != np.float64 or a.shape != b.shape:
            continue
        elements = b[(a != b) & np.isfinite(b)]
        with np.errstate(over="ignore", under="ignore"):
            single, half = (np.array_equal(elements, elements.astype(kind)) for kind in (np.float32, np.float16))
        if elements.size and single and not half:
            return f"output '{name}' in float32"
    return None


def _shaken(value: Any, rng: np.random.Generator) -> Any:
    """``value`` moved by about a thousandth where it is a floating-point array."""
    array = np.asarray(value)
    if isinstance(value, list) or array.dtype.kind != "f":
        return value
    size = np.where(np.isfinite(array) & (array != 0), array, 1)
    return array + 1e-3 * rng.standard_normal(array.shape) * size


@dataclasses.dataclass(frozen=True)
class Deviation:
    """How floating-point outputs of two evaluations differ.

    Attributes:
        relative: The largest difference, relative to the largest element of its output.
        conflict: What differs beyond rounding in the type of the output; None where nothing does.
    """

    relative: float = 0.0
    conflict: str | None = None


def deviation(found: Arrays, expected: Arrays) -> Deviation:
    """How ``found`` differs from ``expected``, in whose types rounding is allowed."""
    largest = 0.0
    for name, value in expected.items():
        if isinstance(value, list) or np.asarray(value).dtype.name not in _AGREEMENT:
            continue
        dtype = np.asarray(value).dtype.name
        a, b = np.asarray(found[name], np.float64), np.asarray(value, np.float64)
        if a.shape != b.shape:
            return Deviation(conflict=f"output '{name}' has shape {list(a.shape)}, not {list(b.shape)}")
        finite = np.isfinite(b)
        if not np.array_equal(finite, np.isfinite(a)):
            return Deviation(conflict=f"output '{name}' is not finite at the same places")
        scale = float(np.max(np.abs(b[finite]), initial=smallest_normal(dtype)))
        relative = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0)) / scale
        if relative > _AGREEMENT[dtype] and relative * scale > smallest_normal(dtype):
            return Deviation(relative, f"output '{name}' differs by {relative:.2g} of its largest element")
        largest = max(largest, relative)
    return Deviation(largest)


def smallest_normal(dtype: str) -> float:
    """The smallest positive number of a floating-point type with all its digits; below, results are lost."""
    return {"float64": 2.0**-1022, "float16": 2.0**-14}.get(dtype, 2.0**-126)


def _float64_runtime(wide: ir.Model, threads: int | None) -> Evaluator:
    lowered = wide.clone()
    lower(lowered)
    session = Session(lowered, threads=threads)
    return Evaluator(_FLOAT64_RUNTIME, EPSILON["float64"], (), lambda feeds: session.run(widened(feeds)))


def _float64_reference(wide: ir.Model, _: int | None) -> Evaluator:
    reference = _limited_reference(ir.to_proto(wide), _NODE_RUNS)
    names = [output.name or "" for output in wide.graph.outputs]

    def run(feeds: Arrays) -> dict[str, Any]:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = reference(names, dict(widened(feeds)))
        except _REFERENCE_ERRORS as error:
            raise TargetError("the reference evaluator", str(error)) from error
        return dict(zip(names, results, strict=True))

    return Evaluator(_FLOAT64_REFERENCE, EPSILON["float64"], (), run)


class Erf(OpRun):
    """The error function to all digits of its argument's type; that of onnx 1.23 has those of float32."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype),)


class Adam(TrainingAdam):
    """A step for each tensor in its own type; that of onnx 1.23 rounds to float32 when there are several."""

    op_domain = "ai.onnx.preview.training"

    def _run(self, *data: Any, **attributes: Any) -> tuple[Any, ...]:
        rate, count, *tensors = data
        number = len(tensors) // 4
        steps = [self._run1(rate, count, *tensors[k::number], **attributes) for k in range(number)]
        return tuple(result for kind in zip(*steps, strict=True) for result in kind)


def _limited_reference(model: onnx.ModelProto, limit: int) -> Callable[[list[str], dict[str, Any]], Any]:
    """Runs ``model``, but gives up on an evaluation with more than ``limit`` node executions."""
    executed = 0

    class Limited(ReferenceEvaluator):
        """Counts in every scope: subgraphs and function bodies are run by evaluators of the same class."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "new_ops": [Erf, Adam]})

        def run(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal executed
            executed += len(self.rt_nodes_)
            if executed > limit:
                raise RuntimeError(f"more than {limit:,} node executions")
            return super().run(*args, **kwargs)

    evaluator = Limited(model)

    def run(names: list[str], feeds: dict[str, Any]) -> Any:
        nonlocal executed
        executed = 0
        return evaluator.run(names, feeds)

    return run


def _own_type(model: ir.Model, feeds: Arrays, threads: int | None) -> Evaluator:
    session = Session(model, threads=threads)
    dtypes = {port.name: port.type for port in session.inputs}
    kinds = [a.dtype.name for a in map(np.asarray, feeds.values())]
    kinds += [type_name(dtype) for value in model.graph.outputs if (dtype := value.dtype) is not None]
    kind = max((k for k in kinds if k in EPSILON), key=EPSILON.__getitem__, default="float32")
    name = f"{kind} in ONNX Runtime"
    return Evaluator(name, EPSILON[kind], (), lambda given: session.run(_narrowed(given, dtypes)))


def _narrowed(feeds: Arrays, dtypes: Mapping[str, str]) -> Arrays:
    """Feeds in which float64 arrays have the type that the model wants."""
    return {
        name: value.astype(dtypes[name]) if getattr(value, "dtype", None) == np.float64 else value
        for name, value in feeds.items()
    }


def widened(feeds: Arrays) -> Arrays:
    """Feeds whose floating-point arrays are in float64."""
    return {name: _wide(value) for name, value in feeds.items()}


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(element) for element in value]
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.name in _AGREEMENT else array
