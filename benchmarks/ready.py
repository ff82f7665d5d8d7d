"""Differentiates a model and creates a session: ``ready.py MODEL GRADIENT WRT...`` prints one JSON line a stage.

The first line comes before anything is done. A process that is ended early has printed the stages it finished.
"""

from __future__ import annotations

import json
import sys
import time

import onnx
from measured_run import session_of

from onnx_cfad.differentiate import differentiate
from onnx_cfad.model import load
from onnx_cfad.options import Options


def main() -> None:
    path, result, *wrt = sys.argv[1:]
    model = onnx.load(path)
    begun = time.process_time()
    _print({"stage": "start", "process_s": begun})
    gradient = differentiate(load(model), Options(wrt=tuple(wrt), loss="loss", plan="taped"))
    onnx.save(gradient.proto(), result)
    transformed = time.process_time()
    _print({"stage": "transform", "cpu_s": transformed - begun, "nodes": gradient.report.nodes[1]})
    session_of(result)
    _print({"stage": "session", "cpu_s": time.process_time() - transformed})


def _print(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
