"""Differentiates a model with onnx-ad: ``transform_with_onnx_ad.py MODEL RESULT WRT...`` prints what it took."""

from __future__ import annotations

import json
import sys
import time

import onnx
import onnx_ad


def main() -> None:
    primal, result, *wrt = sys.argv[1:]
    model = onnx.load(primal)
    started, started_cpu = time.perf_counter(), time.process_time()
    gradient = onnx_ad.reverse(model, inputs=wrt, outputs=["loss"], layout="onnx")
    took = {"transform_s": time.perf_counter() - started, "transform_cpu_s": time.process_time() - started_cpu}
    onnx.save(gradient, result)
    print(json.dumps(took))


if __name__ == "__main__":
    main()
