# Claim: to differentiate a network with loops and create a session takes at most a twentieth of the CPU time that
# the same takes for the network unrolled: at N=1,000 for the recurrent network of W2, and from N=100 on for the
# translation network of W6.
"""Time until a gradient can run: loops kept against loops written out.

At N=1,000 the unrolled networks have 6,000 and 76,000 nodes, their gradients more. ONNX Runtime takes longer than
linear time to create such a session, so an attempt is ended after ``--limit`` seconds of CPU time, which is then a
lower bound. The translation network is unrolled at ``--lengths`` instead; how its time grows between them is printed,
and what that makes of N=1,000, where only its loops are measured. At a small N the gradients of both forms are run and
compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import subprocess
import sys

import gnmt
import onnx
import recurrent
from gradients import ours
from meter import HERE, Bench, Case, forward
from unrolling import unrolled

STEPS, FEW = 1000, 20
LENGTHS = (100, 200, 400)  # of the translation network, which unrolled at 1,000 does not end in reasonable time
TIMES = 20
LIMIT = 240  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds of CPU time for an attempt")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the unrolled translation network")
    asked = parser.parse_args()
    bench = Bench("unrolled_gradient")
    for few in (recurrent.case("loop", FEW, width=32), gnmt.case("additive", FEW, width=32)):
        flat = dataclasses.replace(few, model=unrolled(few.model))
        systems = [forward(few), ours(few, "loops", plan="taped"), ours(flat, "unrolled")]
        bench.measure(few, systems, rounds=1, at_most=2)
    _compare(bench, recurrent.case("loop", STEPS, width=8, inputs=4), asked.limit)
    _translation(bench, sorted(asked.lengths), asked.limit)
    bench.finish()


def _compare(bench: Bench, case: Case, limit: int) -> float | None:
    """CPU seconds of the unrolled form, None where it was ended; claims how much the loops are faster."""
    kept, _ = _time(bench, case, "loops", case.model, limit)
    written, ended = _time(bench, case, "unrolled", unrolled(case.model), limit)
    least = " (ended: a lower bound)" if ended else ""
    bench.claim(f"{case.name}: unrolled, times the loops' CPU time{least}", written / kept, at_least=TIMES)
    return None if ended else written


def _translation(bench: Bench, lengths: list[int], limit: int) -> None:
    """The translation network at ``lengths``, and what their growth makes of ``STEPS`` iterations."""
    attempts = {steps: _compare(bench, gnmt.case("additive", steps), limit) for steps in lengths}
    written = {steps: taken for steps, taken in attempts.items() if taken is not None}
    case = gnmt.case("additive", STEPS)
    kept, _ = _time(bench, case, "loops", case.model, limit)
    if len(written) > 1:
        low, high = min(written), max(written)
        exponent = math.log(written[high] / written[low]) / math.log(high / low)
        expected = written[high] * (STEPS / high) ** exponent
        figures = {"exponent": exponent, "expected_cpu_s": expected, "expected_times_the_loops": expected / kept}
        bench.report({"case": case.name, "unrolled": "extrapolated", **figures})


def _time(bench: Bench, case: Case, name: str, model: onnx.ModelProto, limit: int) -> tuple[float, bool]:
    """CPU seconds of transformation and session creation in a fresh process, and whether the process was ended."""
    path = case.folder / f"{name}.onnx"
    onnx.save(model, path)
    command = [sys.executable, str(HERE / "ready.py"), str(path), str(case.folder / f"{name}.grad.onnx"), *case.wrt]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=lambda: _limit(limit))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stages = {line["stage"]: line for line in map(json.loads, done.stdout.splitlines())}
    ended = "session" not in stages
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if ended and took < limit - 1:
        raise RuntimeError(f"{name} on {case.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    total = took - stages["start"]["process_s"] if ended else stages["transform"]["cpu_s"] + stages["session"]["cpu_s"]
    figures = {f"{stage}_cpu_s": line["cpu_s"] for stage, line in stages.items() if "cpu_s" in line}
    nodes = {"nodes": len(model.graph.node), "gradient_nodes": stages.get("transform", {}).get("nodes")}
    bench.report({"case": case.name, "system": name, **nodes, **figures, "total_cpu_s": total, "ended": ended})
    return total, ended


def _limit(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


if __name__ == "__main__":
    main()
