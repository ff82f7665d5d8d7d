"""The GPU that CuPy finds, and which of the compiled files it takes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from onnx_cfad.errors import TargetError

_WHERE = "target 'cuda'"


def cupy() -> Any:
    """CuPy with a GPU.

    Raises:
        TargetError: There is none; in one line.
    """
    try:
        xp = importlib.import_module("cupy")
    except ImportError as error:
        raise TargetError(_WHERE, "CuPy is not installed", "Run: pip install cupy-cuda13x") from error
    try:
        count = int(xp.cuda.runtime.getDeviceCount())
    except xp.cuda.runtime.CUDARuntimeError as error:
        raise TargetError(_WHERE, f"there is no GPU: {error}", "Run the artifact on a machine with one.") from error
    if count == 0:
        raise TargetError(_WHERE, "there is no GPU", "Run the artifact on a machine with one.")
    return xp


def file_for(capability: str, architectures: Sequence[str]) -> str:
    """The file of kernels for a device, such as "80": machine code of its generation, else PTX of an older one.

    Raises:
        TargetError: All files are for newer devices.
    """
    own = int(capability)
    known = sorted(int(name.removeprefix("sm_")) for name in architectures)
    same = [a for a in known if a // 10 == own // 10 and a <= own]
    if same:
        return f"kernels.sm_{same[-1]}.cubin"
    older = [a for a in known if a <= own]
    if older:
        return f"kernels.sm_{older[-1]}.ptx"
    raise TargetError(_WHERE, f"the GPU is sm_{own}; kernels are there for {', '.join(architectures)} and newer")
