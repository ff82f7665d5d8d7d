# Claim: a minute of MetaSchedule makes the gradients of products and of convolutions by TVM's Relax at least five times
# faster than its own schedules do.
"""Gradients of straight-line networks in ONNX Runtime, and by TVM without and with a search for schedules."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from gradients import ours
from meter import Bench, Case, System
from w8_targets import in_tvm, prepared

from onnx_cfad.errors import TargetError
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.worker import Worker

MODELS = {
    "product, 128 x 256 x 256": """product (float[128, 256] x, float[256, 256] w) => (float loss) {
        a = MatMul (x, w)  h = Tanh (a)  s = Mul (h, h)  loss = ReduceSum <keepdims = 0> (s)
    }""",
    "convolution, 32 channels of 28 x 28": """
    convolution (float[1, 32, 28, 28] x, float[32, 32, 3, 3] w) => (float loss) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)  h = Tanh (a)  s = Mul (h, h)  loss = ReduceSum <keepdims = 0> (s)
    }""",
}
_SLICE = 10.0  # seconds of a search before it begins anew with other candidates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="what a search may take")
    parser.add_argument("--builds", nargs="+", default=["relax", "relay"])
    given = parser.parse_args()
    bench = Bench("w8_tuning")
    for name, text in MODELS.items():
        for kind in given.builds:
            _compare(bench, _case(name, text), kind, given.seconds)
    bench.finish()


def _case(name: str, text: str) -> Case:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = (rng.standard_normal(shape) / 16).astype(np.float32)
    return Case(name, model, feeds, tuple(feeds))


def _compare(bench: Bench, case: Case, kind: str, seconds: float) -> None:
    title = kind.capitalize()
    runtime = ours(case, "ONNX Runtime")
    plain = in_tvm(kind, case, title, Path(runtime.command[1]))
    systems = [runtime, plain]
    if plain.absent is None:
        systems.append(_tuned(bench, kind, case, Path(runtime.command[1]), f"{title}, tuned", seconds))
    measured = bench.measure(case, systems, rounds=2, reference=runtime.name)
    if len(systems) == 3 and systems[2].absent is None:
        ratio = measured[plain.name].cpu_s / measured[systems[2].name].cpu_s
        bench.report({"case": case.name, "build": kind, "times_faster_than_untuned": ratio})
        bench.report(
            {
                "case": case.name, "build": kind,
                "times_faster_than_onnx_runtime": measured[runtime.name].cpu_s / measured[systems[2].name].cpu_s,
            }
        )  # fmt: skip
        if kind == "relax":
            bench.claim(f"{case.name}, {title}: times faster than untuned", ratio, at_least=5.0)


def _tuned(bench: Bench, kind: str, case: Case, model: Path, name: str, seconds: float) -> System:
    """The model with the schedules that a search finds, which lie beside it."""
    path = model.with_name(f"{model.stem}.{kind}.tuned.onnx")
    onnx.save(prepared(kind, model), path)
    folder = path.with_suffix(".schedules")
    folder.mkdir(exist_ok=True)
    worker = Worker(kind, interpreter(kind))
    shapes = {value: list(case.feeds[value].shape) for value in case.feeds}
    options = {"processor": worker.call("versions")[0]["processor"]}
    trials = failed = 0
    end = time.monotonic() + seconds
    seed = 0
    try:
        while (left := end - time.monotonic()) > 1:
            seed += 1
            arguments = {"model": str(path), "shapes": shapes, "folder": str(folder), "options": options}
            answer, _ = worker.call(
                "search_schedules", {**arguments, "seconds": min(left, _SLICE), "seed": seed}, timeout_s=left + 60
            )
            trials, failed = trials + answer["trials"], failed + answer["failed"]
    except TargetError as error:
        return System(name, absent=str(error))
    finally:
        worker.close()
    bench.report({"case": case.name, "build": kind, "seconds": seconds, "candidates": trials, "failed": failed})
    return System(name, ("measured_tvm.py", kind, str(path)), python=str(interpreter(kind)))


if __name__ == "__main__":
    main()
