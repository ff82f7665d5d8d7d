"""What targets need, and whether it is there."""

from __future__ import annotations

import dataclasses
import importlib.metadata

from onnx_cfad.targets.gaps import GAPS
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.builds import BUILDS

_SERVED = "llvm, cuda"
"""Of each build of TVM; the kernels of Relay are for looking at."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Something that targets need.

    Attributes:
        name: What it is called on the command line.
        what: What it is.
        target: The targets that it serves.
        installed: It is there; nothing has been run to find out.
        state: Where it is, or the command that installs it.
    """

    name: str
    what: str
    target: str
    installed: bool
    state: str


def inventory() -> tuple[Entry, ...]:
    """Everything that targets need, ONNX Runtime first."""
    runtime = importlib.metadata.version("onnxruntime")
    first = Entry("ort", "ONNX Runtime", "ort", True, f"{runtime}, part of onnx-cfad")
    missing = (Entry(name, gap.what, name, False, f"not available: {gap.lacks}") for name, gap in GAPS.items())
    return (first, *map(_build, BUILDS), *missing)


def _build(kind: str) -> Entry:
    found, build = environments.find(kind), BUILDS[kind]
    what = f"{build.title} {build.release}"
    if found.python is None:
        return Entry(kind, what, _SERVED, False, f"not installed: onnx-cfad targets install {kind}")
    by = "" if found.by == "installed" else f", by {found.by}"
    return Entry(kind, what, _SERVED, True, f"{found.python}{by}")
