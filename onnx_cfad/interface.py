"""How a differentiated model relates to its primal: which inputs are seeds, which outputs are gradients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.names import COTANGENT_SUFFIX, cotangent_name
from onnx_cfad.ports import listed


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a gradient model takes and gives beyond its primal.

    Attributes:
        wrt: The names differentiated by.
        outputs: The differentiated outputs.
        asked: The names that were asked for (such as ``scope/path:name``), with those in ``wrt``.
        seeded: Each of ``outputs`` has a seed input; else there is one output, a loss, and its seed is 1.
    """

    wrt: tuple[str, ...]
    outputs: tuple[str, ...]
    seeded: bool
    asked: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], compare=False)


def read_interface(primal: ir.Model, gradient: ir.Model, loss: str | None = None) -> Interface:
    """Compares the inputs and outputs of two models.

    Args:
        primal: The original model.
        gradient: Its differentiated form.
        loss: The output that was differentiated, where the gradient model neither has a seed nor says so.

    Raises:
        ModelError: ``gradient`` is not a differentiated form of ``primal``.
    """
    own_inputs, own_outputs = _names(primal.graph.inputs), _names(primal.graph.outputs)
    inputs = _names(gradient.graph.inputs)
    outputs = _names(gradient.graph.outputs)
    constants = set(primal.graph.initializers)
    _require([n for n in own_inputs if n not in inputs and n not in constants], "has no input")
    _require([name for name in own_outputs if name not in outputs], "has no output")
    seeds = [name for name in inputs if name not in own_inputs]
    seeded = [name for name in own_outputs if cotangent_name(name) in seeds]
    unknown = sorted(set(seeds) - {cotangent_name(name) for name in seeded})
    _require(unknown, "has a further input", "which is the seed of no output of the original model")
    results = [name for name in outputs if name not in own_outputs]
    _require([n for n in results if not n.endswith(COTANGENT_SUFFIX)], "has a further output", "which is no gradient")
    if not results:
        raise ModelError("gradient model", "it has no output beyond those of the original model", "Is it the gradient?")
    wrt = tuple(name[: -len(COTANGENT_SUFFIX)] for name in results)
    if seeded:
        return Interface(wrt, tuple(seeded), seeded=True, asked=_asked(gradient))
    return Interface(wrt, (_loss(primal, gradient, loss),), seeded=False, asked=_asked(gradient))


def _names(values: Sequence[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]


def _require(names: Sequence[str], what: str, then: str = "") -> None:
    if names:
        tail = f", {then}" if then else ""
        raise ModelError(
            "gradient model", f"it {what} {listed(names)}{tail}", "Check that it was made from this model."
        )


def _loss(primal: ir.Model, gradient: ir.Model, named: str | None) -> str:
    """The output whose seed is fixed to 1."""
    known = _names(primal.graph.outputs)
    name = named or recorded_options(gradient).get("loss")
    if name is None:
        scalars = [o for o in primal.graph.outputs if o.shape is not None and not o.shape.dims and _is_float(o)]
        name = scalars[0].name if len(scalars) == 1 else None
    if not isinstance(name, str) or name not in known:
        raise ModelError(
            "gradient model",
            "it has no seed, and does not say which output is the loss",
            f"Give --loss NAME; the outputs are {listed(known)}.",
        )
    return name


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def recorded_options(gradient: ir.Model) -> Mapping[str, object]:
    """The options that a gradient model says it was made with; empty where it does not."""
    text = gradient.metadata_props.get("onnx_cfad.options", "{}")
    try:
        options = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return options if isinstance(options, dict) else {}


def _asked(gradient: ir.Model) -> dict[str, str]:
    """What the gradient model says of the names it was asked for."""
    try:
        recorded = json.loads(gradient.metadata_props.get("onnx_cfad.wrt", "{}"))
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in recorded.items()} if isinstance(recorded, dict) else {}
