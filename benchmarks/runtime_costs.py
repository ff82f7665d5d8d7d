"""Claim: ONNX Runtime 1.32 has the costs that the emitted models are built around (docs/runtime-notes.md).

A stacked Loop output costs twice its bytes, and about 600 bytes an iteration when it is small, a Scan output its bytes;
memory-pattern planning raises the peak of the second run; invariant nodes are run every iteration; a stacked output
that nobody reads is kept; a weight from two levels up is not packed; a carry that one element is written into is
copied, and so is a sequence at each insertion.

Each figure is taken in a process of its own, on one thread: peak resident memory during a run less that before it, or
processor time (the least of three runs). Prints one JSON line for each. Linux only.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

MIB = float(1 << 20)
Feeds = dict[str, np.ndarray[Any, Any]]

HEADER = '<ir_version: 10, opset_import: ["": 21]> '
STACKED_LOOP = """m (float[D] x, int64 n) => (float[N,D] rows) {
    y, rows = Loop (n, , x) <body = b (int64 i, bool g, float[D] h) => (bool a, float[D] next, float[D] row)
        { a = Identity (g)  next = Sin (h)  row = Cos (h) }>
}"""
STACKED_SCAN = """m (float[D] x, int64[N] steps) => (float[N,D] rows) {
    y, rows = Scan <num_scan_inputs = 1, body = b (float[D] h, int64 i) => (float[D] next, float[D] row)
        { next = Sin (h)  row = Cos (h) }> (x, steps)
}"""
INVARIANT = """m (float[512,512] x, int64 n) => (float[512,512] y) {
    y = Loop (n, , x) <body = b (int64 i, bool g, float[512,512] h) => (bool a, float[512,512] next)
        { a = Identity (g)  p = MatMul (x, x)  next = Add (h, p) }>
}"""
HOISTED = """m (float[512,512] x, int64 n) => (float[512,512] y) {
    p = MatMul (x, x)
    y = Loop (n, , x) <body = b (int64 i, bool g, float[512,512] h) => (bool a, float[512,512] next)
        { a = Identity (g)  next = Add (h, p) }>
}"""
UNREAD = """m (float[D] x, int64 n) => (float[D] y) {
    y, unread = Loop (n, , x) <body = b (int64 i, bool g, float[D] h) => (bool a, float[D] next, float[D] row)
        { a = Identity (g)  next = Neg (h)  row = Identity (h) }>
}"""
PRUNED = """m (float[D] x, int64 n) => (float[D] y) {
    y = Loop (n, , x) <body = b (int64 i, bool g, float[D] h) => (bool a, float[D] next)
        { a = Identity (g)  next = Neg (h) }>
}"""
DEPTH_1 = """m (float[4,512] x, int64 n, int64 k) => (float[4,512] y) {
    y = Loop (n, , x) <body = b (int64 i, bool g, float[4,512] h) => (bool a, float[4,512] next)
        { a = Identity (g)  p = MatMul (h, w)  next = Tanh (p) }>
}"""
DEPTH_2 = """m (float[4,512] x, int64 n, int64 k) => (float[4,512] y) {
    y = Loop (k, , x) <body = o (int64 j, bool f, float[4,512] s) => (bool c, float[4,512] t) {
        c = Identity (f)
        t = Loop (n, , s) <body = b (int64 i, bool g, float[4,512] h) => (bool a, float[4,512] next)
            { a = Identity (g)  p = MatMul (h, w)  next = Tanh (p) }>
    }>
}"""
INSERT = """m (float[8] x, int64 n) => (int64 count) {
    empty = SequenceEmpty ()
    s = Loop (n, , empty) <body = b (int64 i, bool g, seq(float[8]) q) => (bool a, seq(float[8]) r)
        { a = Identity (g)  r = SequenceInsert (q, x) }>
    count = SequenceLength (s)
}"""
WRITTEN = """m (float[D] x, int64 n) => (float[D] y) <int64[1] one = {1}> {
    y = Loop (n, , x) <body = b (int64 i, bool g, float[D] h) => (bool a, float[D] next)
        { a = Identity (g)  place = Reshape (i, one)  value = Cast <to = 1> (place)
          at = Unsqueeze (place, one)  next = ScatterND (h, at, value) }>
}"""
RECURRENT = """m (float[16,256] h, float[2000,16,256] x, float[256,256] v) => (float[16,256] y) {
    y = Scan <num_scan_inputs = 1, body = b (float[16,256] s, float[16,256] t) => (float[16,256] next)
        { p = MatMul (s, v)  q = Add (p, t)  next = Tanh (q) }> (h, x)
}"""


def session(text: str, *, weight: int = 0, inside: bool = False) -> onnxruntime.InferenceSession:
    """A session of one thread; ``w`` is a random square weight of ``weight`` rows, in the main graph or inside."""
    model = onnx.parser.parse_model(HEADER + text)
    if weight:
        values = np.random.default_rng(0).standard_normal((weight, weight)).astype(np.float32) / weight
        graph = model.graph.node[0].attribute[0].g.node[1].attribute[0].g if inside else model.graph
        graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def resident(key: str) -> int:
    """A figure of this process in bytes: VmRSS, or VmHWM, the highest since it was reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def growth(act: Callable[[], Any]) -> int:
    """Bytes that resident memory rises during ``act``."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    act()
    return resident("VmHWM") - before


def seconds(run: Callable[[], Any]) -> float:
    """Processor time, the least of three runs after a first one."""
    run()
    times: list[float] = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def stacked(text: str, trips: int, width: int) -> int:
    """Growth in a run of a loop that stacks ``trips`` rows of ``width`` floats."""
    s = session(text)
    counter = {"steps": np.arange(trips)} if "steps" in text else {"n": np.asarray(trips)}
    feeds: Feeds = {"x": np.ones(width, np.float32), **counter}
    return growth(lambda: s.run(None, feeds))


def loop_seconds(text: str, trips: int, shape: tuple[int, ...], *, inner: int | None = None, **more: Any) -> float:
    """Processor seconds an iteration."""
    s = session(text, **more)
    feeds: Feeds = {"x": np.ones(shape, np.float32), "n": np.asarray(inner or trips), "k": np.asarray(1)}
    wanted = {i.name for i in s.get_inputs()}
    if inner is not None:
        feeds["k"] = np.asarray(trips // inner)
    return seconds(lambda: s.run(None, {k: v for k, v in feeds.items() if k in wanted})) / trips


def gradient(runs: int, *, pattern: bool) -> float:
    """Growth in MiB over ``runs`` runs of the gradient of a recurrent network of 2,000 steps, with a full tape."""
    import onnx_cfad as cfad  # noqa: PLC0415 - only here

    model = onnx.parser.parse_model(HEADER + RECURRENT)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = pattern
    content = cfad.vjp(model, plan="taped").proto().SerializeToString()
    s = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feeds: Feeds = {i.name: np.full(i.shape, 1e-3, np.float32) for i in s.get_inputs()}
    return growth(lambda: [len(s.run(None, feeds)) for _ in range(runs)]) / MIB


MEASURES: dict[str, Callable[[], float]] = {
    "loop output, 16 KiB rows: peak in payloads": lambda: stacked(STACKED_LOOP, 4000, 4096) / (4000 * 4096 * 4),
    "scan output, 16 KiB rows: peak in payloads": lambda: stacked(STACKED_SCAN, 4000, 4096) / (4000 * 4096 * 4),
    "loop output, 32-byte rows: bytes an iteration": lambda: stacked(STACKED_LOOP, 100_000, 8) / 100_000,
    "scan output, 32-byte rows: bytes an iteration": lambda: stacked(STACKED_SCAN, 100_000, 8) / 100_000,
    "gradient, one run: MiB": lambda: gradient(1, pattern=True),
    "gradient, two runs, memory pattern on: MiB": lambda: gradient(2, pattern=True),
    "gradient, two runs, memory pattern off: MiB": lambda: gradient(2, pattern=False),
    "product in the body: ms an iteration": lambda: 1e3 * loop_seconds(INVARIANT, 50, (512, 512)),
    "product in front of the loop: ms an iteration": lambda: 1e3 * loop_seconds(HOISTED, 50, (512, 512)),
    "unread loop output: us an iteration": lambda: 1e6 * loop_seconds(UNREAD, 4000, (4096,)),
    "no such output: us an iteration": lambda: 1e6 * loop_seconds(PRUNED, 4000, (4096,)),
    "weight one level up: us an iteration": lambda: 1e6 * loop_seconds(DEPTH_1, 1000, (4, 512), weight=512),
    "weight two levels up: us an iteration": lambda: 1e6 * loop_seconds(DEPTH_2, 1000, (4, 512), inner=100, weight=512),
    "weight in the inner body: us an iteration": lambda: (
        1e6 * loop_seconds(DEPTH_2, 1000, (4, 512), inner=100, weight=512, inside=True)
    ),
    "one element written into a carry of 80 KB: us an iteration": lambda: 1e6 * loop_seconds(WRITTEN, 1000, (20_000,)),
    "one element written into a carry of 8 MB: us an iteration": lambda: (
        1e6 * loop_seconds(WRITTEN, 1000, (2_000_000,))
    ),
    "sequence of 1,000: us an insertion": lambda: 1e6 * loop_seconds(INSERT, 1000, (8,)),
    "sequence of 8,000: us an insertion": lambda: 1e6 * loop_seconds(INSERT, 8000, (8,)),
}
FACTORS = (
    ("loop output, 16 KiB rows: peak in payloads", "scan output, 16 KiB rows: peak in payloads", 1.5),
    ("loop output, 32-byte rows: bytes an iteration", "scan output, 32-byte rows: bytes an iteration", 4.0),
    ("gradient, two runs, memory pattern on: MiB", "gradient, two runs, memory pattern off: MiB", 1.2),
    ("product in the body: ms an iteration", "product in front of the loop: ms an iteration", 4.0),
    ("unread loop output: us an iteration", "no such output: us an iteration", 1.5),
    (
        "one element written into a carry of 8 MB: us an iteration",
        "one element written into a carry of 80 KB: us an iteration",
        10.0,
    ),
    ("sequence of 8,000: us an insertion", "sequence of 1,000: us an insertion", 3.0),
)


def main() -> None:
    """Measures everything, prints it, and asserts the claim where it is a factor."""
    if len(sys.argv) > 1:
        print(MEASURES[sys.argv[1]]())
        return
    found: dict[str, float] = {}
    for name in MEASURES:
        result = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True).stdout
        found[name] = round(float(result), 2)
        versions = {"onnxruntime": onnxruntime.__version__, "machine": platform.machine()}
        print(json.dumps({"measure": name, "value": found[name], **versions}), flush=True)
    for more, less, factor in FACTORS:
        assert found[more] >= factor * found[less], f"{more} is below {factor} times {less}"


if __name__ == "__main__":
    main()
