"""Measures one model in TVM: ``measured_tvm.py relay|relax MODEL FEEDS.npz SETTINGS`` prints one JSON object.

Runs in the interpreter of that build of TVM, without this package: as in a worker, empty packages stand in for it.
Compiling is what ``create`` means here, with the schedules in the folder MODEL.schedules where there is one. SETTINGS
as in measured_run.py, and ``reason`` is printed where TVM refuses.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import repeated

_PACKAGE = Path(__file__).resolve().parent.parent / "onnx_cfad"


def main() -> None:
    kind, model, feeds, settings = sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    for part in ("", ".targets", ".targets.tvm"):
        package = types.ModuleType(f"onnx_cfad{part}")
        package.__path__ = [str(_PACKAGE.joinpath(*part.split(".")))]
        sys.modules[package.__name__] = package
    compiler = getattr(importlib.import_module(f"onnx_cfad.targets.tvm.{kind}"), kind.capitalize())()
    options = {"processor": compiler.versions()["processor"]}
    if model.with_suffix(".schedules").is_dir():  # what a search has found
        options["schedules"] = str(model.with_suffix(".schedules"))
    proto = onnx.load(model)
    with np.load(feeds) as arrays:
        values = {port.name: arrays[port.name] for port in proto.graph.input if port.name in arrays}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        started, started_cpu = time.perf_counter(), time.process_time()
        compiler.compile(model, library, {name: list(value.shape) for name, value in values.items()}, options)
        function = compiler.load(library)
        create = {"create_s": time.perf_counter() - started, "create_cpu_s": time.process_time() - started_cpu}
        given = list(values.values())
        runs, outputs = repeated.repeat(lambda: function(given), settings["at_most"], settings["seconds"])
    names = [port.name for port in proto.graph.output]
    if settings.get("save"):
        found: dict[str, Any] = dict(zip(names, outputs, strict=True))
        np.savez(settings["save"], **found)
    size = {"input_bytes": sum(v.nbytes for v in given), "output_bytes": sum(v.nbytes for v in outputs)}
    print(json.dumps({**create, **dataclasses.asdict(runs), **size}))


if __name__ == "__main__":
    main()
