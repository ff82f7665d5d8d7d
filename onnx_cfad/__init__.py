"""Differentiates ONNX models that contain control flow.

A public name is imported when it is first asked for: onnx and sympy, on which most of them rest, take a second. No
module here may have the name of a public function, since importing it would put it in the place of that function.
"""

from __future__ import annotations

import onnx_cfad.interruptions  # noqa: F401 - first: Ctrl-C may come while the command line is imported

# isort: split
import importlib
from typing import TYPE_CHECKING

from onnx_cfad.errors import CfadError, ModelError, PlanError, TargetError, UnsupportedOp, ValidationError
from onnx_cfad.options import INITIALIZERS

if TYPE_CHECKING:
    from onnx_cfad.api import compile, grad, hvp, jvp, plan, profile, vjp  # noqa: A004 - cfad.compile
    from onnx_cfad.differentiate import Gradient, Report
    from onnx_cfad.expand_training import expand
    from onnx_cfad.graph.profile import Profile
    from onnx_cfad.plans.plan import Plan
    from onnx_cfad.validation import validate
    from onnx_cfad.verdict import Validation

__version__ = "0.1.0"

__all__ = [
    "INITIALIZERS",
    "CfadError",
    "Gradient",
    "ModelError",
    "Plan",
    "PlanError",
    "Profile",
    "Report",
    "TargetError",
    "UnsupportedOp",
    "Validation",
    "ValidationError",
    "compile",
    "expand",
    "grad",
    "hvp",
    "jvp",
    "plan",
    "profile",
    "validate",
    "vjp",
]

_HOMES = {
    **dict.fromkeys(["compile", "grad", "hvp", "jvp", "plan", "profile", "vjp"], "api"),
    **dict.fromkeys(["Gradient", "Report"], "differentiate"),
    "expand": "expand_training",
    "Plan": "plans.plan",
    "Profile": "graph.profile",
    "Validation": "verdict",
    "validate": "validation",
}
"""The module of each public name that is imported when it is asked for."""

_MODULES = {"rules", "testing"}
"""Public modules, which are there without an import of their own."""


if not TYPE_CHECKING:  # to which any name would be one of this module

    def __getattr__(name: str) -> object:
        """A public name, imported now and kept."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
