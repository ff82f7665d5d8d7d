"""What is promised about cost: how peak memory and transform time grow with the trip count, not how large they are."""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_cfad as cfad

pytestmark = pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak counter")

# One run in a fresh process: the growth of the resident peak during it, in bytes.
CHILD = """
import json, re, sys
import numpy as np, onnxruntime as ort
def status(key):
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(key + r":\\s+(\\d+)", file.read()).group(1))
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.enable_mem_pattern = False
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(sys.argv[2]))
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
session.run(None, feeds)
print(json.dumps(status("VmHWM") - before))
"""
WIDTH = 256


def long_loop(trips: int) -> onnx.ModelProto:
    """h <- tanh(w * h + b), ``trips`` times; one state is 1 KiB."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["q"]),
            helper.make_node("Tanh", ["q"], ["next"]),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, [WIDTH]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [WIDTH]),
        ],
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH]) for name in ("x", "w", "b")]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "long",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [WIDTH])],
        [numpy_helper.from_array(np.array(trips, np.int64), "n")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def peak(folder: pathlib.Path, trips: int, **plan: Any) -> int:
    generator = np.random.default_rng(0)
    model, data = folder / "model.onnx", folder / "feeds.npz"
    cfad.vjp(long_loop(trips), **plan).save(model)
    feeds: dict[str, Any] = {name: generator.standard_normal(WIDTH) for name in ("x", "w", "b", "y_grad")}
    np.savez(data, **{name: array.astype(np.float32) for name, array in feeds.items()})
    child = subprocess.run([sys.executable, "-c", CHILD, model, data], capture_output=True, text=True, check=True)
    return int(json.loads(child.stdout))


@pytest.mark.slow
def test_checkpointed_memory_grows_with_the_root_of_the_trip_count(tmp_path: pathlib.Path) -> None:
    """From N to 100 N: exponent 1/2 for two levels; a full tape has 1."""
    small, large = (peak(tmp_path, trips, plan="checkpointed") for trips in (4_000, 400_000))
    floor = 1 << 19  # bytes that a run takes whatever the trip count
    assert math.log(max(large, floor) / max(small, floor), 100) < 0.75
    assert large < 60 * 1024 * math.sqrt(400_000)


@pytest.mark.slow
def test_full_tape_is_the_states_and_no_more_than_twice(tmp_path: pathlib.Path) -> None:
    trips = 40_000
    state = 4 * WIDTH
    found = peak(tmp_path, trips, plan="taped")
    assert trips * state < found < 2.5 * trips * state


def test_emitted_model_does_not_grow_with_the_trip_count() -> None:
    for plan in ("taped", "checkpointed"):
        sizes = {len(cfad.vjp(long_loop(n), plan=plan).proto().SerializeToString()) for n in (1_000, 1_000_000)}
        assert max(sizes) - min(sizes) < 64
