"""Differentiates ONNX models that contain control flow."""

import onnx_cfad.interruptions  # noqa: F401 - first: what follows takes a second, in which Ctrl-C may come

# isort: split
from onnx_cfad.api import compile, grad, hvp, jvp, plan, profile, vjp  # noqa: A004 - cfad.compile
from onnx_cfad.differentiate import Gradient, Report
from onnx_cfad.errors import CfadError, ModelError, PlanError, TargetError, UnsupportedOp, ValidationError
from onnx_cfad.expand_training import expand
from onnx_cfad.graph.profile import Profile
from onnx_cfad.options import INITIALIZERS
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
