"""Inputs made up for a differentiated model, whose seeds have to fit what its primal part gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.interface import recorded_seeds
from onnx_cfad.names import primal_name
from onnx_cfad.numeric.made_up import make_up_array, make_up_feeds
from onnx_cfad.ports import Port, ports_of
from onnx_cfad.runtime import Session

Array = np.ndarray[Any, Any]

_DIRECTIONS = 3
"""How many seeds a model gets that takes any number of them."""


def make_up_inputs(
    model: ir.Model, run: Callable[[Mapping[str, Any]], Mapping[str, Any]], seed: int
) -> dict[str, Array]:
    """As ``make_up_feeds``, for a model that may be differentiated: a seed has the shape of the output it belongs to.

    The part that gives this output is run first. Where that takes a seed too, as in a gradient of a gradient, this one
    is found before.

    Args:
        model: The model.
        run: Runs the model.
        seed: Of the random numbers.

    Raises:
        ModelError: The model does not run on anything that was tried; the message asks for inputs.

    Cost: a run of the primal part for each run of the model.
    """
    stages = _stages(model)
    later = {port.name for stage in stages for port in stage.seeds.values()}
    attempts: list[tuple[Mapping[str, Any], dict[str, Any]]] = []

    def complete(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        whole = dict(feeds)
        rng = np.random.default_rng([seed, 2])
        for stage in stages:
            whole.update(stage.made_up(whole, rng))
        attempts.append((feeds, whole))
        return run(whole)

    chosen = make_up_feeds([port for port in ports_of(model) if port.name not in later], complete, seed)
    return next(whole for feeds, whole in attempts if feeds is chosen)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Seeds that one run tells the shapes of.

    Attributes:
        part: What of the model gives the outputs.
        seeds: The seed of each output.
    """

    part: Session
    seeds: Mapping[str, Port]

    def made_up(self, feeds: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Array]:
        """The seeds, for the inputs that are known so far."""
        names = {port.name for port in self.part.inputs}
        outputs = self.part.run({name: feed for name, feed in feeds.items() if name in names})
        return {port.name: _seed_of(np.asarray(outputs[name]), port, rng) for name, port in self.seeds.items()}


def _seed_of(output: Array, port: Port, rng: np.random.Generator) -> Array:
    """A seed for an output [...], or [K, ...] where the model takes many."""
    many = len(port.dims or ()) - output.ndim == 1
    first = (port.dims or (None,))[0]
    leading = ((first if isinstance(first, int) else _DIRECTIONS),) if many else ()
    return make_up_array(port.type, (*leading, *output.shape), rng)


def _stages(model: ir.Model) -> list[_Stage]:
    """Seeds in the order in which they can be found; those that cannot are left out."""
    waiting = _seeds(model)
    known = [value for value in model.graph.inputs if value.name not in {port.name for port in waiting.values()}]
    inputs = {value.name: value for value in model.graph.inputs}
    stages: list[_Stage] = []
    while ready := {name: port for name, port in waiting.items() if _part(model, known, [name]) is not None}:
        part = _part(model, known, list(ready))
        if part is None:
            break
        stages.append(_Stage(Session(part), ready))
        known += [inputs[port.name] for port in ready.values()]
        waiting = {name: port for name, port in waiting.items() if name not in ready}
    return stages


def _seeds(model: ir.Model) -> dict[str, Port]:
    """The inputs that are seeds, each by the output that it belongs to: as the model says, or by their names."""
    outputs = {value.name for value in model.graph.outputs}
    recorded = {seed: output for output, seed in recorded_seeds(model).items()}
    ports = [port for port in ports_of(model) if port.required and port.tensor and port.dims is not None]
    owners = {port: recorded.get(port.name) or primal_name(port.name) for port in ports}
    return {name: port for port, name in owners.items() if name is not None and name in outputs}


def _part(model: ir.Model, inputs: Sequence[ir.Value], outputs: Sequence[str]) -> ir.Model | None:
    """What gives some outputs, as a model; None where it needs more than ``inputs``."""
    values = {value.name: value for value in model.graph.outputs}
    try:
        graph = ir.convenience.extract(model.graph, inputs, [values[name] for name in outputs])
    except ValueError:
        return None
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(graph, ir_version=model.ir_version, functions=functions)
