"""A forward-mode model against differences of its primal, a Hessian-vector product against those of the gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.differentiate import differentiate
from onnx_cfad.errors import TargetError
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.interface import recorded_holders, recorded_options
from onnx_cfad.names import InterfaceNames
from onnx_cfad.numeric.as_specified import as_specified, miscomputed
from onnx_cfad.numeric.evaluators import choose_evaluator
from onnx_cfad.numeric.made_up import moved
from onnx_cfad.numeric.made_up_seeds import make_up_inputs
from onnx_cfad.numeric.many_seeds import ManySeeds, as_single
from onnx_cfad.numeric.rows import Extent, Point, primal_row, unchecked_row
from onnx_cfad.numeric.tangents import Pushed, TangentChecker
from onnx_cfad.numeric.weights_as_inputs import opened
from onnx_cfad.options import Options
from onnx_cfad.ports import Feeds
from onnx_cfad.runtime import Session
from onnx_cfad.verdict import Row, Validation, is_open

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int, str], None]
_MOVES = 2


@dataclasses.dataclass(frozen=True)
class _Subject:
    """What is checked.

    Attributes:
        primal: What differences are taken of, in ONNX Runtime: the original model, or its gradient for an hvp.
        model: The same with the wanted weights as inputs.
        derived: The forward-mode model in ONNX Runtime.
        names: Its tangents.
        inputs: The input of ``model`` for each wrt name.
        values: The values of the weights, by input of ``model``.
    """

    primal: Session
    model: ir.Model
    derived: Session | ManySeeds
    names: InterfaceNames
    inputs: Mapping[str, str]
    values: Mapping[str, Array]

    def varied(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The value of each wrt name."""
        known = {**self.values, **feeds}
        return {name: np.asarray(known[feed]) for name, feed in self.inputs.items()}

    def run(self, feeds: Mapping[str, Any], directions: Mapping[str, Array]) -> Mapping[str, Any]:
        """What the forward-mode model gives for a tangent of each wrt name."""
        return self.derived.run({**feeds, **{self.names.tangents[name]: t for name, t in directions.items()}})

    def pushed(self, feeds: Mapping[str, Any], rng: np.random.Generator | None) -> Pushed:
        """One run in a random direction; along 0 without ``rng``."""
        directions: dict[str, Array] = {}
        for name, x in self.varied(feeds).items():
            drawn = np.zeros(x.shape) if rng is None else rng.standard_normal(x.shape)
            directions[name] = np.where(np.isfinite(x.astype(np.float64)), drawn, 0.0).astype(x.dtype)
        results = self.run(feeds, directions)
        found = {name: np.asarray(results[given]) for name, given in self.names.pushed.items()}
        return Pushed({self.inputs[name]: t.astype(np.float64) for name, t in directions.items()}, found)


def validate_tangents(
    primal: ir.Model,
    derived: ir.Model,
    names: InterfaceNames,
    feeds: Feeds | None,
    extent: Extent,
    *,
    loss: str | None,
    seed: int,
    progress: Progress | None,
) -> Validation:
    """Checks the tangents that a forward-mode model gives; see ``validate``.

    Args:
        primal: The original model.
        derived: Its differentiated form.
        names: What that takes and gives, by ``read_tangents``.
        feeds: Inputs; default: made up.
        extent: How much is checked.
        loss: The loss of a Hessian-vector product, where the model does not say.
        seed: Of everything random.
        progress: Told after each output.
    """
    given = dict(feeds or {})
    source, primal = primal, as_specified(primal)
    original = Session(primal, threads=1)
    parts = names.tangents.values(), names.pushed.values()
    session = as_single(Session(derived, threads=1), derived, *parts, given)
    if feeds != {} and not given and any(port.required for port in original.inputs):
        given = dict(make_up_inputs(primal, original.run, seed))
    outputs = original.run(given)
    told = () if primal is source else miscomputed(source, given, outputs)
    loss = loss or str(recorded_options(derived).get("loss"))
    reference = _gradient_of(primal, names, loss) if names.gradients else primal
    holders = {} if names.gradients else recorded_holders(derived)
    model, inputs, values = opened(reference, list(names.tangents), {n: holders.get(n) or n for n in names.tangents})
    subject = _Subject(Session(reference, threads=1), model, session, names, inputs, values)
    if all(is_pure(node) for node in primal.graph):
        checked = _checked(subject, given, outputs, extent, seed=seed, progress=progress)
        return dataclasses.replace(checked, remarks=(*told, *checked.remarks))
    rows = tuple(unchecked_row(name, value) for name, value in subject.pushed(given, None).tangents.items())
    remarks = ("the model draws random numbers: two runs differ, so that nothing can be compared",)
    return Validation(rows, (), "none", remarks, seed, subject="tangent")


def _gradient_of(primal: ir.Model, names: InterfaceNames, loss: str) -> ir.Model:
    return differentiate(primal.clone(), Options(wrt=tuple(names.gradients), loss=loss)).model


def _checked(
    subject: _Subject,
    feeds: Mapping[str, Any],
    outputs: Mapping[str, Any],
    extent: Extent,
    *,
    seed: int,
    progress: Progress | None,
) -> Validation:
    base = subject.primal.run(feeds)
    evaluator = choose_evaluator(subject.model, {**subject.values, **feeds}, base, threads=1)
    rng = np.random.default_rng([seed, 1])
    checker = TangentChecker(evaluator, extent.rtol, rng)
    at_zero = subject.run(feeds, {name: np.zeros_like(x) for name, x in subject.varied(feeds).items()})
    primal = tuple(primal_row(name, at_zero[name], value) for name, value in outputs.items())
    rows: dict[str, Row] = {}
    pending = list(subject.names.pushed)
    for place, changed in _points(feeds, rng):
        try:
            runs = [subject.pushed(place, rng) for _ in range(extent.directions)]
            given = subject.primal.run(place) if changed else base
        except TargetError:
            continue
        point = Point({**subject.values, **place}, {}, moved=changed)
        for name in pending:
            row = checker.row(name, np.asarray(given[name]), runs, point)
            if name not in rows or not is_open(row.verdict):
                rows[name] = row
            if progress is not None:
                progress(len(rows), len(subject.names.pushed), name)
        pending = [name for name in pending if is_open(rows[name].verdict)]
        if not pending:
            break
    ordered = tuple(rows[name] for name in subject.names.pushed)
    return Validation(ordered, primal, evaluator.name, evaluator.remarks, seed, subject="tangent")


def _points(feeds: Mapping[str, Any], rng: np.random.Generator) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """The point that was asked for, then others near it."""
    yield feeds, False
    for _ in range(_MOVES):
        yield {name: moved(value, rng) for name, value in feeds.items()}, True
