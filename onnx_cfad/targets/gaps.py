"""Targets that have a name and nothing behind it yet: what each is, and what is missing."""

from __future__ import annotations

import dataclasses

from onnx_cfad.errors import TargetError


@dataclasses.dataclass(frozen=True)
class Gap:
    """A target that is not available.

    Attributes:
        what: What it is.
        lacks: What is missing.
    """

    what: str
    lacks: str


GAPS = {
    "ascend": Gap(
        "Huawei Ascend NPUs",
        "nothing here writes kernels for it, and Huawei's CANN toolkit, which compiles them, is in no package index",
    )
}


def refuse_gap(name: str) -> None:
    """Refuses a target that is not available.

    Raises:
        TargetError: It is one, with what is missing.
    """
    if name in GAPS:
        raise TargetError(
            f"target '{name}'", f"it is not available: {GAPS[name].lacks}", "Plans are made for it alone."
        )
