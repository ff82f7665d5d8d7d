# Claim: none. Prints where the time of two gradients that miss a bar goes: the kernels of a run, as parts of all
# kernel time, by operator and by what it is for (forward, replay, reverse), from ONNX Runtime's profiler.
"""Kernel times of checkpointed gradients: W2 (N = 2,000) and W6 (additive attention, S = 100)."""

from __future__ import annotations

import collections
import json
import tempfile
from pathlib import Path

import gnmt
import measured_run
import numpy as np
import onnx
import recurrent
from meter import Bench, Case

from onnx_cfad.differentiate import differentiate
from onnx_cfad.model import load
from onnx_cfad.options import Options

RUNS = 3
_CONTROL = {"Loop", "Scan", "If"}


def main() -> None:
    bench = Bench("node_times")
    for case in (recurrent.case("scan", 2000), gnmt.case("additive", 100)):
        for plan in ("taped", "checkpointed"):
            total, shares = _kernels(case, plan)
            bench.report({"case": case.name, "plan": plan, "kernels_s": total, "shares": shares})


def _kernels(case: Case, plan: str) -> tuple[float, dict[str, float]]:
    """Seconds of all kernels of a run, and the parts of the largest groups."""
    gradient = differentiate(load(case.model), Options(wrt=case.wrt, loss="loss", plan=plan)).proto()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(gradient, path)
        session = measured_run.session_of(str(path), str(Path(folder) / "profile"))
        for _ in range(RUNS):
            session.run(None, {name: np.asarray(value) for name, value in case.feeds.items()})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            if operator not in _CONTROL:
                times[f"{_purpose(event['name'])} {operator}"] += event["dur"]
    whole = sum(times.values())
    return whole / 1e6 / RUNS, {name: round(time / whole, 3) for name, time in times.most_common(10)}


def _purpose(name: str) -> str:
    return "replay" if "replay/" in name else "reverse" if name.startswith("grad/") else "forward"


if __name__ == "__main__":
    main()
