"""Whether results differ from those of ONNX Runtime by rounding alone: both are held against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import CfadError
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.numeric.evaluators import widened
from onnx_cfad.numeric.lower import lower
from onnx_cfad.numeric.widen import widen
from onnx_cfad.ports import Feeds
from onnx_cfad.rewriters.decompose_operators import DecomposeOperatorsPass
from onnx_cfad.rewriters.expand_recurrent import RECURRENT
from onnx_cfad.runtime import Session
from onnx_cfad.targets.comparison import differing

FARTHER = 4.0
"""How much farther from float64 than ONNX Runtime's a result may be: sums in another order may be better or worse."""


def rounding_notes(
    model: ir.Model, feeds: Feeds, results: Mapping[str, Any], reference: Mapping[str, Any]
) -> list[str] | None:
    """For each output over the tolerance how far both are from float64; None where rounding does not explain it.

    It does where the target's results are at most ``FARTHER`` times as far from those of the model in float64 as ONNX
    Runtime's are. Where the exact value is zero, or a loop makes small errors large, both are far.

    Args:
        model: The model; not changed.
        feeds: Its inputs.
        results: What the target gives.
        reference: What ONNX Runtime gives.
    """
    exact = _in_float64(model, feeds)
    if exact is None:
        return None
    notes: list[str] = []
    for name, error in differing(results, reference).items():
        ours, theirs = _distance(results[name], exact[name]), _distance(reference[name], exact[name])
        if not np.isfinite(error) or not ours <= FARTHER * theirs:
            return None
        notes.append(
            f"output '{name}' differs from ONNX Runtime by {error:.1e}, which is rounding: from float64 it is "
            f"{ours:.1e} away, and ONNX Runtime {theirs:.1e}"
        )
    return notes


def _in_float64(model: ir.Model, feeds: Feeds) -> dict[str, Any] | None:
    """What the model gives in float64; None where ONNX Runtime cannot tell."""
    wide = normalise(model.clone())
    infer_types(wide)
    DecomposeOperatorsPass(RECURRENT)(wide)  # of which ONNX Runtime has no kernels for float64
    if not widen(wide):
        return None
    lower(wide)
    try:
        return Session(wide, threads=1).run(widened(feeds))
    except CfadError:
        return None


def _distance(value: Any, exact: Any) -> float:
    """The largest difference, in units of the output; infinite where the two cannot be compared."""
    a, b = (np.asarray(x, np.float64) for x in (value, exact))
    if a.shape != b.shape:
        return np.inf
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return np.inf
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
