"""Measures one ONNX model in this process: ``measured_run.py MODEL FEEDS.npz SETTINGS`` prints one JSON object.

SETTINGS is a JSON object: ``at_most`` and ``seconds`` bound the runs, ``save`` is where to write the outputs. The
session has one thread and no memory pattern (which would double the peak of the second run). Inputs and outputs are
``OrtValue``s, so that neither is copied between NumPy and ONNX Runtime during a run: the outputs are part of the
growth, once, and the inputs are not.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import numpy as np
import onnxruntime as ort
import repeated


def session_of(path: str, profile: str | None = None) -> ort.InferenceSession:
    """A session on one thread of the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    model, feeds, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    started, started_cpu = time.perf_counter(), time.process_time()
    session = session_of(model)
    create = {"create_s": time.perf_counter() - started, "create_cpu_s": time.process_time() - started_cpu}
    with np.load(feeds) as arrays:
        values = {port.name: ort.OrtValue.ortvalue_from_numpy(arrays[port.name]) for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]
    runs, outputs = repeated.repeat(
        lambda: session.run_with_ort_values(names, values), settings["at_most"], settings["seconds"]
    )
    size = {
        "input_bytes": sum(value.tensor_size_in_bytes() for value in values.values()),
        "output_bytes": sum(value.tensor_size_in_bytes() for value in outputs),
    }
    if settings.get("save"):
        np.savez(settings["save"], **{name: value.numpy() for name, value in zip(names, outputs, strict=True)})
    print(json.dumps({**create, **dataclasses.asdict(runs), **size}))


if __name__ == "__main__":
    main()
