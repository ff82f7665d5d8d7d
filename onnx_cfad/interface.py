"""How a differentiated model relates to its primal: which inputs are seeds, which outputs are gradients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.names import TANGENT_SUFFIX, InterfaceNames, primal_name
from onnx_cfad.ports import listed

_SEEDS, _GRADIENTS, _WRT = "onnx_cfad.seeds", "onnx_cfad.gradients", "onnx_cfad.wrt"
_TANGENTS, _PUSHED = "onnx_cfad.tangents", "onnx_cfad.pushed"
_DIAGNOSTICS = "onnx_cfad.diagnostics"


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a gradient model takes and gives beyond its primal.

    Attributes:
        wrt: The names differentiated by; ``scope/path:name`` for a constant of a subgraph.
        outputs: The differentiated outputs.
        names: The seeds and gradients; there is no seed where the one output is a loss, whose seed is 1.
        held: The inputs and initializers that ``wrt`` stands for, by the names in it.
    """

    wrt: tuple[str, ...]
    outputs: tuple[str, ...]
    names: InterfaceNames
    held: Mapping[str, str]


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
    recorded = _recorded_names(gradient)
    outputs = _names(gradient.graph.outputs)
    constants = set(primal.graph.initializers)
    _require([n for n in own_inputs if n not in inputs and n not in constants], "has no input")
    _require([name for name in own_outputs if name not in outputs], "has no output")
    seeds = _owners([n for n in inputs if n not in own_inputs], recorded.seeds)
    unknown = sorted(name for name, output in seeds.items() if output not in own_outputs)
    _require(unknown, "has a further input", "which is the seed of no output of the original model")
    others = {*own_outputs, *_recorded(gradient, _DIAGNOSTICS)}
    results = _owners([name for name in outputs if name not in others], recorded.gradients)
    _require([n for n, wrt in results.items() if wrt is None], "has a further output", "which is no gradient")
    if not results:
        raise ModelError("gradient model", "it has no output beyond those of the original model", "Is it the gradient?")
    names = InterfaceNames(_by_owner(seeds), _by_owner(results))
    differentiated = tuple(names.seeds) or (_loss(primal, gradient, loss),)
    known, held = {*own_inputs, *constants}, recorded_holders(gradient)
    where = {name: held.get(name) or (name if name in known else name.rpartition(":")[2]) for name in names.gradients}
    return Interface(tuple(names.gradients), differentiated, names, where)


def read_tangents(primal: ir.Model, derived: ir.Model) -> InterfaceNames | None:
    """What a forward-mode model takes and gives beyond its primal; None for a gradient model.

    Args:
        primal: The original model.
        derived: Its differentiated form.

    Raises:
        ModelError: ``derived`` has tangents, but is not a differentiated form of ``primal``.
    """
    own_inputs, own_outputs = _names(primal.graph.inputs), _names(primal.graph.outputs)
    inputs, outputs = _names(derived.graph.inputs), _names(derived.graph.outputs)
    tangents, pushed = _recorded(derived, _TANGENTS), _recorded(derived, _PUSHED)
    if not tangents:
        named = [name for name in inputs if name not in own_inputs and name.endswith(TANGENT_SUFFIX)]
        tangents = {name.removesuffix(TANGENT_SUFFIX): name for name in named}
        results = [name for name in outputs if name not in own_outputs and name.endswith(TANGENT_SUFFIX)]
        pushed = {name.removesuffix(TANGENT_SUFFIX): name for name in results}
    if not tangents:
        return None
    constants = set(primal.graph.initializers)
    _require([n for n in own_inputs if n not in inputs and n not in constants], "has no input")
    _require([name for name in own_outputs if name not in outputs], "has no output")
    _require([name for name in tangents.values() if name not in inputs], "has no input")
    _require([name for name in pushed.values() if name not in outputs], "has no output")
    gradients = {} if set(pushed) <= set(own_outputs) else _recorded(derived, _GRADIENTS)
    return InterfaceNames({}, gradients, tangents, pushed)


def record_interface(model: ir.Model, names: InterfaceNames, held: Mapping[str, str]) -> None:
    """Writes into a gradient model which inputs are seeds, which outputs are gradients, and by what.

    Args:
        model: The gradient model.
        names: Of its seeds and gradients.
        held: The input or initializer that each wrt name stands for.
    """
    for key, entries in ((_SEEDS, names.seeds), (_GRADIENTS, names.gradients), (_WRT, held)):
        model.metadata_props[key] = json.dumps(dict(entries))
    for key, entries in ((_TANGENTS, names.tangents), (_PUSHED, names.pushed)):
        if entries:
            model.metadata_props[key] = json.dumps(dict(entries))


def record_diagnostics(model: ir.Model, sites: Mapping[str, str]) -> None:
    """Writes into a gradient model which outputs say something about a site, each with the path of the site."""
    if sites:
        model.metadata_props[_DIAGNOSTICS] = json.dumps(dict(sites))


def _owners(found: Sequence[str], recorded: Mapping[str, str]) -> dict[str, str | None]:
    """What each seed or gradient belongs to: as the model says, or by its name."""
    owners = {given: name for name, given in recorded.items()}
    return {given: owners.get(given) or primal_name(given) for given in found}


def _by_owner(owners: Mapping[str, str | None]) -> dict[str, str]:
    return {name: given for given, name in owners.items() if name is not None}


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


def _recorded_names(gradient: ir.Model) -> InterfaceNames:
    """The seeds and gradients that a gradient model says it has; empty where it does not."""
    return InterfaceNames(_recorded(gradient, _SEEDS), _recorded(gradient, _GRADIENTS))


def recorded_seeds(gradient: ir.Model) -> dict[str, str]:
    """The seed of each differentiated output, as a gradient model says; empty where it does not."""
    return _recorded(gradient, _SEEDS)


def order_of(model: ir.Model) -> int:
    """How many times ``model`` says that it was differentiated; 0 where it does not say."""
    text = model.metadata_props.get("onnx_cfad.order", "0")
    return int(text) if text.isdecimal() and len(text) < 5 else 0


def recorded_holders(gradient: ir.Model) -> dict[str, str]:
    """The input or initializer that each wrt name stands for, as a gradient model says."""
    return _recorded(gradient, _WRT)


def _recorded(gradient: ir.Model, key: str) -> dict[str, str]:
    try:
        found = json.loads(gradient.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
