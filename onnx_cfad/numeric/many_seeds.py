"""A model that takes many seeds in one run, as one that takes a single seed: for comparisons made for single ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.interface import recorded_options
from onnx_cfad.runtime import Session

Array = np.ndarray[Any, Any]

_TRIED = 3
"""Directions in a run where the model leaves their number open."""


@dataclasses.dataclass(frozen=True)
class ManySeeds:
    """Runs a model on multiples of one seed, and gives of each result the row that differs most from the first.

    The multiples are all different, so that rows in a wrong place are noticed. Where all rows agree, the result is that
    of the seed; where one does not, a check of the result fails.

    Attributes:
        session: The model.
        count: How many seeds it takes, K.
        seeds: Inputs that have a leading axis of K.
        results: Outputs that have it.
    """

    session: Session
    count: int
    seeds: Collection[str]
    results: Collection[str]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for feeds whose seeds have no leading axis."""
        given = {name: self._spread(np.asarray(x)) if name in self.seeds else x for name, x in feeds.items()}
        found = self.session.run(given)
        return {name: self._worst(np.asarray(x)) if name in self.results else x for name, x in found.items()}

    def _scales(self, rank: int) -> Array:
        return (1 + np.arange(self.count) / self.count).reshape(-1, *[1] * rank)

    def _spread(self, seed: Array) -> Array:
        return (self._scales(seed.ndim) * seed.astype(np.float64)).astype(seed.dtype)

    def _worst(self, rows: Array) -> Array:
        """A result [...] out of [K, ...]; what has another number of rows stays, and is seen by its shape."""
        if not rows.ndim or len(rows) != self.count:
            return rows
        wide = rows.astype(np.float64) / self._scales(rows.ndim - 1)
        same = (wide == wide[:1]) | (np.isnan(wide) & np.isnan(wide[:1]))
        with np.errstate(invalid="ignore"):  # infinity from itself
            apart = np.where(same, 0.0, np.abs(wide - wide[:1])).reshape(self.count, -1)
        far = np.nan_to_num(apart, nan=np.inf).max(axis=1, initial=0.0)
        return wide[int(np.argmax(far))].astype(rows.dtype)


def as_single(
    session: Session, derived: ir.Model, seeds: Collection[str], results: Collection[str], given: Mapping[str, Any]
) -> Session | ManySeeds:
    """``session`` of the model ``derived``, whose seeds have no leading axis any more.

    Args:
        session: The model in ONNX Runtime.
        derived: The model, which says how many seeds it takes.
        seeds: Its seeds, or tangents.
        results: What it gives for them.
        given: The feeds that the user gave.

    Raises:
        ModelError: Seeds are given.
    """
    count = recorded_options(derived).get("seeds")
    if count is None:
        return session
    brought = next((name for name in given if name in seeds), None)
    if brought is not None:
        raise ModelError(
            f"input '{brought}'", "the seeds of a model that takes many are made up when it is checked", "Leave it out."
        )
    return ManySeeds(session, count if isinstance(count, int) else _TRIED, frozenset(seeds), frozenset(results))
