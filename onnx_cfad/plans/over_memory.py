"""What an automatic plan takes beyond the memory that it was given: told, since the rest of the plan keeps to it."""

from __future__ import annotations

from collections.abc import Iterable

from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.options import MOST_LEVELS, Options
from onnx_cfad.plans.plan import Decision


def over_memory(options: Options, outermost: Iterable[Decision]) -> tuple[str, ...]:
    """A sentence where the tapes of the ``outermost`` loops take more than they may, although the plan is automatic.

    The plan has as many levels of checkpoints as it takes, unless the user says how many.
    """
    decisions = list(outermost)
    used = sum(decision.bytes or 0 for decision in decisions)
    if options.plan != "auto" or used <= options.memory or all(d.reason == "as asked" for d in decisions):
        return ()
    deepest = max((d.adjoint.levels for d in decisions if isinstance(d.adjoint, Checkpointed)), default=0)
    few = options.levels is not None and 0 < deepest < MOST_LEVELS
    remedy = f"; --levels {deepest + 1} takes less of a long loop" if few else ""
    return (f"the tapes take {used:,} bytes, more than the {options.memory:,} of memory{remedy}",)
