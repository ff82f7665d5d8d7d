"""Tangents compared with central differences of the primal in the direction that they were pushed from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnx_cfad.numeric.differences import Accuracy, Comparison, Outcome, Sample, compare
from onnx_cfad.numeric.evaluators import EPSILON, Evaluator, smallest_normal
from onnx_cfad.numeric.rows import Point, PrimalScalar, relative_tolerance, row_of

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Pushed:
    """One run in forward mode.

    Attributes:
        direction: The tangents, by the input of the primal that each belongs to.
        tangents: What came out, by output.
    """

    direction: Mapping[str, Array]
    tangents: Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class TangentChecker:
    """Compares a random combination of the elements of each tangent with its difference along the direction.

    Attributes:
        evaluator: Of the primal.
        rtol: Relative error that holds; None for one by element type.
        rng: Of the combinations.
    """

    evaluator: Evaluator
    rtol: float | None
    rng: np.random.Generator

    def row(self, name: str, output: Array, runs: list[Pushed], point: Point) -> Any:
        """The row of the tangent of one output.

        Args:
            name: The output.
            output: Its value.
            runs: One for each direction.
            point: Where.

        Cost: 2 evaluations for each run that holds.
        """
        found: list[tuple[str, Comparison]] = []
        for number, run in enumerate(runs, 1):
            found.append((f"direction {number}", self._compared(name, output, run, point)))
        return row_of(name, runs[0].tangents[name], f"{len(runs)} directions", found, point)

    def _compared(self, name: str, output: Array, run: Pushed, point: Point) -> Comparison:
        tangent = run.tangents[name]
        rtol = self.rtol if self.rtol is not None else relative_tolerance(tangent, self.evaluator)
        if tangent.shape != output.shape or tangent.dtype != output.dtype:
            return Comparison(math.nan, math.nan, 0.0, rtol, Outcome.WRONG)
        comparable = np.isfinite(output.astype(np.float64))
        weights = np.where(comparable, self.rng.standard_normal(output.shape), 0.0)
        function = PrimalScalar(self.evaluator, {name: weights}, point.feeds)
        if function.blind or not tangent.size:
            outcome = Outcome.UNCHECKED if tangent.size else Outcome.HOLDS
            return Comparison(math.nan if tangent.size else 0.0, 0.0, 0.0, rtol, outcome)
        terms = weights * np.where(comparable, tangent.astype(np.float64), 0.0)
        starts = {feed: np.asarray(point.feeds[feed]).astype(np.float64) for feed in run.direction}
        size = math.sqrt(sum(float(np.sum(x[np.isfinite(x)] ** 2)) for x in starts.values()))
        count = math.sqrt(max(sum(x.size for x in starts.values()), 1))
        kind = tangent.dtype.name
        accuracy = Accuracy(self.evaluator.epsilon, rtol, smallest_normal(kind) * tangent.size, EPSILON.get(kind, 0.0))

        def line(t: float) -> Sample:
            return function({feed: x + t * run.direction[feed] for feed, x in starts.items()})

        scale = float(np.linalg.norm(terms))
        return compare(line, float(np.sum(terms)), scale, size / count or 1.0, accuracy)
