# Claim: what the automatic plan tapes is cheaper than every residual in one tape. A chain of four transcendental
# functions and a product over a carry of 4,096 elements, N=1,000: at most half of the memory at no more than 1.1x the
# CPU time. A carry whose length varies, N=10,000: at most half of the CPU time.
"""Two choices of the automatic plan: a tape of carries alone, and sequences in segments."""

from __future__ import annotations

import numpy as np
import onnx.parser
from gradients import ours
from meter import Bench, Case, forward

CHAIN = """<ir_version: 10, opset_import: ["": 21]> chain (float[4096] x, float[4096] c) => (float[] loss)
    <int64 trips = {1000}> {
    y = Loop (trips, , x) <body = body (int64 i, bool going, float[4096] h) => (bool again, float[4096] next) {
        again = Identity (going)  a = Tanh (h)  p = Mul (a, c)  b = Sigmoid (p)  d = Exp (b)  e = Tanh (d)
        f = Sub (e, h)  next = Add (h, f)
    }>
    loss = ReduceSum <keepdims = 0> (y)
}"""
UNEVEN = """<ir_version: 10, opset_import: ["": 21]> uneven (float[64] x) => (float[] loss)
    <int64 trips = {10000}> {
    y = Loop (trips, , x) <body = body (int64 i, bool going, float[k] h) => (bool again, float[m] next)
        <int64[1] one = {1}, int64[1] zero = {0}, int64[2] behind = {0, 4}, int64 three = {3}, int64[1] least = {60}> {
        again = Identity (going)  rest = Mod (i, three)  more = Reshape (rest, one)  length = Add (more, least)
        a = Sin (h)  wide = Pad (a, behind)  next = Slice (wide, zero, length, zero)
    }>
    loss = ReduceSum <keepdims = 0> (y)
}"""


def main() -> None:
    bench = Bench("tape_choice")
    rng = np.random.default_rng(0)
    x, c = (rng.uniform(0.1, 0.9, 4096).astype(np.float32) for _ in range(2))
    chain = Case("chain of functions, N=1,000, H=4,096", onnx.parser.parse_model(CHAIN), {"x": x, "c": c}, ("x", "c"))
    uneven = Case("uneven carry, N=10,000", onnx.parser.parse_model(UNEVEN), {"x": x[:64]}, ("x",))
    for case in (chain, uneven):
        systems = [forward(case), ours(case, "default"), ours(case, "taped", plan="taped")]
        measured = bench.measure(case, systems, rounds=2, at_most=5)
        default, taped = measured["default"], measured["taped"]
        time, most = default.cpu_s / taped.cpu_s, 1.1 if case is chain else 0.5
        bench.claim(f"{case.name}: default, time in units of the full tape's", time, at_most=most)
        if case is chain:
            first = default.figures["first_cpu_s"] / taped.figures["first_cpu_s"]
            bench.claim(f"{case.name}: default, first run, time in units of the full tape's", first, at_most=1.1)
            bench.claim(f"{case.name}: default, memory by the full tape's", default.beyond / taped.beyond, at_most=0.5)
    bench.finish()


if __name__ == "__main__":
    main()
