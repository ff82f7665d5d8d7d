"""The systems that give gradients: this package under a plan, and its peers where they are installed.

onnx-ad differentiates graph inputs only, so the weights are graph inputs for every system. Peers are looked for in this
Python, then in those that ``ONNX_CFAD_PEERS`` names, separated as in ``PATH`` (``python -m venv peers; peers/bin/pip
install onnx-ad==0.3.0``). Only onnx-ad's transformation runs there; the result is measured like every other model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import Any

import machine
import onnx
from meter import HERE, Case, System, onnx_system

from onnx_cfad.differentiate import differentiate
from onnx_cfad.model import load
from onnx_cfad.options import Options

_REPEATED = 3  # times that a transformation is measured
_SHORT = 10.0  # seconds: what takes longer is measured once
_PATIENCE = 300  # seconds that a peer may take to transform a model


def ours(case: Case, name: str, **options: Any) -> System:
    """The gradient by this package; a short transformation is repeated, and the least time counts."""
    took: dict[str, float] = {}
    while True:
        started, started_cpu = time.perf_counter(), time.process_time()
        gradient = differentiate(load(case.model), Options(wrt=case.wrt, loss="loss", **options))
        model = gradient.proto()
        once = {"transform_s": time.perf_counter() - started, "transform_cpu_s": time.process_time() - started_cpu}
        took = {**_least(took, once), "transforms": took.get("transforms", 0) + 1}
        if took["transforms"] == _REPEATED or took["transform_s"] > _SHORT:
            break
    adjoints = {path: str(decision.adjoint) for path, decision in gradient.plan.decisions.items()}
    return onnx_system(case, name, model, {**took, "plan": adjoints})


def _least(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: min(value, one.get(key, value)) for key, value in other.items()}


def onnx_ad(case: Case) -> System:
    """The gradient by onnx-ad, measured as ours: a short transformation is repeated, each in a fresh process."""
    name = "onnx-ad"
    python = python_with("onnx_ad")
    if python is None:
        return System(name, absent="onnx_ad is not installed")
    primal, result = case.folder / "primal.onnx", case.folder / "transformed.onnx"
    onnx.save(case.model, primal)
    command = [python, str(HERE / "transform_with_onnx_ad.py"), str(primal), str(result), *case.wrt]
    took: dict[str, float] = {}
    while True:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return System(name, absent=f"not ready within {_PATIENCE} s")
        if done.returncode:
            return System(name, absent="refused: " + done.stderr.strip().splitlines()[-1])
        took = {**_least(took, json.loads(done.stdout.splitlines()[-1])), "transforms": took.get("transforms", 0) + 1}
        if took["transforms"] == _REPEATED or took["transform_s"] > _SHORT:
            return onnx_system(case, name, onnx.load(result), took)


def eager(workload: str) -> System:
    """The gradient by PyTorch in eager mode, from the function ``eager`` of the module ``workload``."""
    name = "torch eager"
    if machine.versions()["torch"] == "absent":
        return System(name, absent="torch is not installed")
    return System(name, ("measured_eager.py", workload))


def implicit_library(name: str, tolerance: float) -> System:
    """The gradient of W5's equation by jaxopt, optimistix or torchdeq, each with its own loop to ``tolerance``."""
    python = python_with(name)
    if python is None:
        return System(name, absent=f"{name} is not installed")
    return System(name, ("measured_implicit.py", name, repr(tolerance)), python=python)


def python_with(module: str) -> str | None:
    """The interpreter that can import ``module``, this one first."""
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    for other in filter(None, os.environ.get("ONNX_CFAD_PEERS", "").split(os.pathsep)):
        command = [other, "-W", "ignore", "-c", f"import {module}"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return other
    return None
