"""A gradient model against numerical differentiation of its primal."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.api import Names, Wrt, grad, hvp, jvp, vjp
from onnx_cfad.differentiate import Gradient
from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.given import called, one_of, whole
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.interface import Interface, read_interface, read_tangents
from onnx_cfad.model import Source, fingerprint, load
from onnx_cfad.numeric.as_specified import as_specified, miscomputed
from onnx_cfad.numeric.evaluators import choose_evaluator
from onnx_cfad.numeric.made_up import moved
from onnx_cfad.numeric.made_up_seeds import make_up_inputs
from onnx_cfad.numeric.many_seeds import ManySeeds, as_single
from onnx_cfad.numeric.rows import Checker, Extent, Point, primal_row, unchecked_row
from onnx_cfad.numeric.weights_as_inputs import opened
from onnx_cfad.options import MODES, Options
from onnx_cfad.ports import Feeds, feeds_of, listed
from onnx_cfad.runtime import Session
from onnx_cfad.tape_error import TapeError, compare_tapes, narrow_tape, with_exact_tape
from onnx_cfad.validate_tangents import validate_tangents
from onnx_cfad.verdict import Row, Validation, is_open

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int, str], None]
"""Told after each gradient: how many are done, how many there are, and the name of this one."""

_MOVES = 2
"""How many further points are tried for what cannot be told at the first."""


def validate(
    model: Source,
    gradient: Gradient | Source | None = None,
    feeds: Feeds | None = None,
    *,
    wrt: Wrt = None,
    outputs: Names = None,
    loss: str | None = None,
    seed: int = 0,
    rtol: float | None = None,
    directions: int = 3,
    every_element_up_to: int = 64,
    progress: Progress | None = None,
    mode: str = "reverse",
) -> Validation:
    """Checks a gradient against central differences of the original model, and that primal outputs did not change.

    The gradient model runs in ONNX Runtime as it is. The differences are taken in float64, in ONNX Runtime or in the
    reference evaluator of onnx; where neither can, in the model's own type, with a wider tolerance. Random directions
    are checked for every wrt, and every element where there are few. A model made with ``seeds`` is run on multiples of
    one seed, and of each result the row that differs most from the others is compared.

    Args:
        model: The original model: a path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.
        gradient: Its differentiated form; None to differentiate first.
        feeds: Inputs by name, and seeds where they are not to be random; default: made up from what the model
            declares.
        wrt: Names to check; default: all that ``gradient`` has, or as for ``vjp``.
        outputs: Names of outputs to differentiate, when ``gradient`` is None.
        loss: The scalar output to differentiate, when ``gradient`` is None; or that was, when it does not say so.
        seed: Of everything random.
        rtol: Relative error that holds, between 0 and 1; default by element type (float64 1e-6, float32 1e-3, float16
            5e-2).
        directions: Random directions for each wrt, from 1 up.
        every_element_up_to: Largest number of elements to check one by one.
        progress: Called after each gradient.
        mode: "reverse", "forward" or "hvp", when ``gradient`` is None. Tangents are compared with differences along
            random directions, Hessian-vector products with differences of the gradient.

    Raises:
        ModelError: A model is unusable, the two do not belong together, the feeds do not fit, or a number is out of
            range.
        UnsupportedOp: ``gradient`` is None, and the model cannot be differentiated.
        TargetError: ONNX Runtime refuses a model.
    """
    extent = Extent(directions, every_element_up_to, rtol)
    seed = whole("seed", seed, 0)
    called("progress", progress)
    feeds = None if feeds is None else feeds_of(feeds)
    if gradient is None:
        gradient = _derived(model, wrt, outputs, loss, mode)
    primal, derived = load(model), load(gradient)
    tangents = read_tangents(primal, derived)
    if tangents is not None:
        return validate_tangents(primal, derived, tangents, feeds, extent, loss=loss, seed=seed, progress=progress)
    subject = _subject(model, gradient, feeds, loss=loss, seed=seed)
    names = _wanted(subject.interface, wrt)
    return _checked(subject, names, extent, progress=progress, seed=seed)


def _derived(model: Source, wrt: Wrt, outputs: Names, loss: str | None, mode: str) -> Gradient:
    asked = one_of("mode", mode, MODES)
    if asked == "hvp":
        return hvp(model, loss="" if loss is None else loss, wrt=wrt)
    if asked == "forward":
        return jvp(model, wrt=wrt, outputs=outputs if loss is None else [loss])
    return grad(model, loss=loss, wrt=wrt) if loss is not None else vjp(model, wrt=wrt, outputs=outputs)


@dataclasses.dataclass(frozen=True)
class _Subject:
    """What is checked, ready to run.

    Attributes:
        primal: The original model, as the specification reads it.
        interface: How the two models relate.
        original: The original model in ONNX Runtime.
        extended: The gradient model in ONNX Runtime.
        feeds: Inputs of the original model.
        outputs: What the original model gives on them.
        cotangents: Of the differentiated outputs.
        remarks: What the reader should know.
        tape: The element type of a narrow tape; None where tapes are exact.
        exact: The gradient model with exact tapes instead, where it could be made.
    """

    primal: ir.Model
    interface: Interface
    original: Session
    extended: Session | ManySeeds
    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]
    cotangents: Mapping[str, Array]
    remarks: tuple[str, ...]
    tape: str | None = None
    exact: Session | ManySeeds | None = None

    def extended_at(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """What the gradient model gives."""
        return self.extended.run(self._seeded(feeds))

    def tape_error(self, found: Mapping[str, Any]) -> TapeError | None:
        """What the narrow tape costs at the point that was asked for."""
        if self.tape is None:
            return None
        exact = None if self.exact is None else self.exact.run(self._seeded(self.feeds))
        return compare_tapes(self.tape, found, exact, list(self.interface.names.gradients.items()))

    def _seeded(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {**feeds, **{seed: self.cotangents[name] for name, seed in self.interface.names.seeds.items()}}


def _subject(
    model: Source, gradient: Gradient | Source, feeds: Feeds | None, *, loss: str | None, seed: int
) -> _Subject:
    rng = np.random.default_rng(seed)
    loaded, derived = load(model), load(gradient)
    interface = read_interface(loaded, derived, loss)
    primal = as_specified(loaded)
    original = Session(model if primal is loaded else primal, threads=1)
    given = dict(feeds or {})

    def single(source: Source) -> Session | ManySeeds:
        parts = interface.names.seeds.values(), interface.names.gradients.values()
        return as_single(Session(source, threads=1), derived, *parts, given)

    extended = single(gradient if isinstance(gradient, (str, os.PathLike)) else derived)
    seeds = {name: given.pop(seed, None) for name, seed in interface.names.seeds.items()}
    if feeds != {} and not given and any(port.required for port in original.inputs):
        given = make_up_inputs(primal, original.run, seed)
    outputs = original.run(given)
    blind = _blind(outputs[name] for name in interface.outputs)
    cotangents = {
        name: np.asarray(seeds[name])
        if seeds.get(name) is not None
        else _cotangent(outputs[name], interface, rng, blind)
        for name in interface.outputs
    }
    recorded = derived.metadata_props.get("onnx_cfad.source")
    other = recorded is not None and recorded != fingerprint(loaded)
    remarks = ("the gradient model says that it was made from another model",) if other else ()
    remarks += () if primal is loaded else miscomputed(model, given, outputs)
    lost = [name for name, ct in cotangents.items() if _blind([outputs[name]]) and not ct.any()]
    remarks += tuple(f"output '{name}' is nowhere finite: derivatives are not checked through it" for name in lost)
    tape = narrow_tape(derived)
    remade = None if tape is None or other else with_exact_tape(load(model), derived)
    exact = None if remade is None else single(remade.model)
    return _Subject(primal, interface, original, extended, given, outputs, cotangents, remarks, tape, exact)


def _blind(outputs: Iterable[Array]) -> bool:
    """Whether outputs have elements, but no finite one: nothing can be compared here, but perhaps nearby."""
    numbers = [np.isfinite(output.astype(np.float64)) for output in outputs if output.size]
    return bool(numbers) and not any(finite.any() for finite in numbers)


def _cotangent(output: Array, interface: Interface, rng: np.random.Generator, blind: bool) -> Array:
    """A random seed, 0 where the output is infinite and cannot be compared while others can; or the 1 of a loss."""
    seeded = bool(interface.names.seeds)
    values = rng.standard_normal(output.shape) if seeded else np.ones(output.shape)
    kept = np.isfinite(output.astype(np.float64)) | (not seeded) | blind
    return np.asarray(np.where(kept, values, 0.0)).astype(output.dtype)


def _wanted(interface: Interface, wrt: Wrt) -> list[str]:
    """The names to check: those of ``wrt`` that are names, or all."""
    asked = Options.of(wrt).wrt
    if not asked:
        return list(interface.wrt)
    missing = [name for name in asked if name not in interface.wrt]
    if missing:
        raise ModelError(
            f"wrt '{missing[0]}'", f"the gradient model has no such gradient; it has {listed(interface.wrt)}"
        )
    return list(dict.fromkeys(asked))


def _checked(
    subject: _Subject, names: Sequence[str], extent: Extent, *, progress: Progress | None, seed: int
) -> Validation:
    extended = subject.extended_at(subject.feeds)
    tape = subject.tape_error(extended)
    if tape is not None and extent.rtol is None:
        extent = dataclasses.replace(extent, at_least=tape.limit)
    gradients = subject.interface.names.gradients
    if not all(is_pure(node) for node in subject.primal.graph):
        unchecked = tuple(unchecked_row(name, extended[gradients[name]]) for name in names)
        remarks = (*subject.remarks, "the model draws random numbers: two runs differ, so that nothing can be compared")
        return Validation(unchecked, (), "none", remarks, seed)
    primal = tuple(primal_row(name, extended[name], value) for name, value in subject.outputs.items())
    model, inputs, values = opened(subject.primal, names, subject.interface.held)
    evaluator = choose_evaluator(model, {**values, **subject.feeds}, subject.outputs, threads=1)
    rng = np.random.default_rng([seed, 1])
    checker = Checker(evaluator, subject.cotangents, extent, rng)
    rows: dict[str, Row] = {}
    pending = list(names)
    for point in _points(subject, extended, values, rng):
        for name in pending:
            row = checker.row(name, inputs[name], np.asarray(point.outputs[gradients[name]]), point)
            if name not in rows or not is_open(row.verdict):
                rows[name] = row
            if progress is not None:
                progress(len(rows), len(names), name)
        pending = [name for name in pending if is_open(rows[name].verdict)]
        if not pending:
            break
    remarks = (*subject.remarks, *evaluator.remarks)
    return Validation(tuple(rows[name] for name in names), primal, evaluator.name, remarks, seed, tape=tape)


def _points(
    subject: _Subject, extended: Mapping[str, Any], weights: Mapping[str, Array], rng: np.random.Generator
) -> Iterator[Point]:
    """The point that was asked for, then others near it where the models run."""
    yield Point({**weights, **subject.feeds}, extended, moved=False)
    for _ in range(_MOVES):
        feeds = {name: moved(value, rng) for name, value in subject.feeds.items()}
        try:
            outputs = subject.extended_at(feeds)
        except TargetError:
            continue
        yield Point({**weights, **feeds}, outputs, moved=True)
