"""Whether a build of TVM works here: a small model with a loop is compiled, run and compared."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from onnx_cfad.errors import CfadError, TargetError
from onnx_cfad.targets.base import Options, Tell
from onnx_cfad.targets.cache import Cache
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.builds import BUILDS

_MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
trial (float[2, 3] x, float[3] u, int64 n, bool go) => (float[2, 3] y) {
    y = Loop (n, go, x) <body = step (int64 i, bool on, float[2, 3] h) => (bool again, float[2, 3] next) {
        again = Identity (on)
        scaled = Mul (h, u)
        next = Tanh (scaled)
    }>
}
"""


@dataclasses.dataclass(frozen=True)
class Trial:
    """What became of a trial.

    Attributes:
        name: The build.
        works: It compiled and ran the model, and the result is that of ONNX Runtime.
        what: Its versions, or what went wrong.
    """

    name: str
    works: bool
    what: str


def trials(kinds: Sequence[str] | None = None, tell: Tell = lambda _: None) -> tuple[Trial, ...]:
    """Tries the builds of TVM.

    Args:
        kinds: Which; default: those that are installed.
        tell: Called with what is being done.

    Raises:
        TargetError: One that is named is not installed, or unknown; or none is installed.
    """
    for kind in kinds or ():
        environments.interpreter(kind)
    installed = [kind for kind in BUILDS if environments.find(kind).python is not None]
    if not installed:
        raise TargetError(
            "targets", "no build of TVM is installed", f"Run: onnx-cfad targets install {' '.join(BUILDS)}"
        )
    return tuple(_trial(kind, tell) for kind in kinds or installed)


def _trial(kind: str, tell: Tell) -> Trial:
    model: onnx.ModelProto = onnx.parser.parse_model(_MODEL)
    x, u = np.asarray([[0.5, -1.0, 2.0], [1.0, 0.0, -0.25]], np.float32), np.asarray([1.5, -0.5, 0.75], np.float32)
    feeds = {"x": x, "u": u, "n": np.asarray(3), "go": np.asarray(True)}
    tell(f"checking {BUILDS[kind].title}")
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as folder:
        try:
            artifact = compile_model(model, "llvm", feeds=feeds, options=Options(kind), cache=Cache(Path(folder)))
        except CfadError as error:
            return Trial(kind, False, str(error))
    versions = artifact.manifest.stamp["versions"]
    return Trial(kind, True, ", ".join(f"{name} {version}" for name, version in versions.items()))
