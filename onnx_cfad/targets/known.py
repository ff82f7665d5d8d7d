"""The targets by name; each is imported when it is asked for."""

from __future__ import annotations

import importlib

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.base import Target
from onnx_cfad.targets.gaps import refuse_gap

_TARGETS = {"llvm": "onnx_cfad.targets.tvm.llvm:Llvm", "cuda": "onnx_cfad.targets.cuda.target:Cuda"}


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        TargetError: There is none.
    """
    refuse_gap(name)
    if name not in _TARGETS:
        raise TargetError(f"target '{name}'", "there is no such target to compile for", f"There is {_listed()}.")
    module, _, attribute = _TARGETS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)()
    assert isinstance(found, Target)
    return found


def _listed() -> str:
    return ", ".join(_TARGETS)
