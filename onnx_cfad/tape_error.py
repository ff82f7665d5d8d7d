"""What a tape in fewer bits costs: a bound on every taped value, and what the gradients lose by it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import Decision, Plan, plan_from_json

UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of a taped value within the range of the element type."""

_ROOM = 40.0
"""Units that a gradient may be off: taped values are multiplied and added on the way to it."""


@dataclasses.dataclass(frozen=True)
class TapeError:
    """What the narrow tape of a gradient model costs.

    Attributes:
        tape: Its element type, the narrowest where there are several.
        unit: The bound on the relative error of a taped value.
        error: The largest relative difference (2-norm) of a gradient from that of an exact tape; None where the
            exact one could not be made again.
        limit: The largest difference that holds.
        name: The gradient that differs most.
    """

    tape: str
    unit: float
    error: float | None
    limit: float
    name: str

    @property
    def holds(self) -> bool:
        """Whether no gradient differs by more than the limit."""
        return self.error is None or self.error <= self.limit

    def __str__(self) -> str:
        text = f"{self.tape}, a taped value is off by at most {self.unit:.2g} of itself"
        if self.error is None:
            return f"{text}; its cost was not measured: the gradient model does not say how it was made"
        return f"{text}; gradients by {self.error:.2g} (most by '{self.name}'), limit {self.limit:.2g}"


def narrow_tape(gradient: ir.Model) -> str | None:
    """The narrowest element type of the tapes of a gradient model; None where all are exact, or it does not say."""
    text = gradient.metadata_props.get("onnx_cfad.plan")
    adjoints = plan_from_json(text).values() if text else ()
    found = {a.tape for a in adjoints if isinstance(a, (Taped, Checkpointed)) and a.tape}
    return max(found, key=UNITS.__getitem__, default=None)


def limit_of(tape: str) -> float:
    """How far a gradient over a tape of this element type may be off, relative to its size."""
    return _ROOM * UNITS[tape]


def with_exact_tape(primal: ir.Model, gradient: ir.Model) -> Gradient | None:
    """The gradient of ``primal``, which is consumed, made as ``gradient`` was but for the element type of its tapes.

    None where ``gradient`` does not say how it was made, or was made by a version with other options.
    """
    text, plan = (gradient.metadata_props.get(f"onnx_cfad.{key}") for key in ("options", "plan"))
    recorded: Any = json.loads(text) if text else None
    known = {field.name for field in dataclasses.fields(Options)}
    if plan is None or not isinstance(recorded, dict) or set(recorded) != known:
        return None
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in recorded.items()
    }
    exact = {path: _exact(adjoint) for path, adjoint in plan_from_json(plan).items()}
    text = Plan({path: Decision(adjoint, None, "") for path, adjoint in exact.items()}).to_json()
    settings |= {"tape": "", "plan": "auto", "plan_text": text, "sites": ()}
    return differentiate(primal, Options(**settings))


def _exact(adjoint: Any) -> Any:
    return dataclasses.replace(adjoint, tape="") if isinstance(adjoint, (Taped, Checkpointed)) else adjoint


def compare_tapes(
    tape: str, found: Mapping[str, Any], exact: Mapping[str, Any] | None, names: Sequence[tuple[str, str]]
) -> TapeError:
    """Compares gradients over a narrow tape with those over an exact one.

    Args:
        tape: The element type of the narrow tape.
        found: Outputs of the model with the narrow tape.
        exact: Those of the model with the exact one.
        names: For each gradient: what it is by, and its output.
    """
    errors = {} if exact is None else {name: _difference(found[output], exact[output]) for name, output in names}
    worst = max(errors, key=errors.__getitem__, default="")
    return TapeError(tape, UNITS[tape], errors.get(worst), limit_of(tape), worst)


def _difference(found: Any, exact: Any) -> float:
    """The relative difference in the 2-norm; infinite where only the narrow one is not finite."""
    one, other = np.asarray(found).astype(np.float64), np.asarray(exact).astype(np.float64)
    finite = np.isfinite(other)
    if not np.isfinite(one[finite]).all():
        return float("inf")
    size = float(np.linalg.norm(other[finite]))
    return float(np.linalg.norm(one[finite] - other[finite])) / size if size else float(np.any(one[finite] != 0))
