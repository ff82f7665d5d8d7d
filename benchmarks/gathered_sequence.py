# Claim: the gradient by a sequence that a Loop reads element by element with Gather takes CPU time and memory
# linear in the length N, from 500 to 8,000 elements: the growth exponent of each is at most 1.1.
"""The gradient by a gathered sequence."""

from __future__ import annotations

import math

import recurrent
from gradients import onnx_ad, ours
from meter import Bench, Measured, forward

LENGTHS = (500, 1000, 2000, 4000, 8000)
PEER_UP_TO = 2000  # onnx-ad scatters into the whole sequence at each step: its time grows with the square of N
MAX_EXPONENT = 1.1


def main() -> None:
    bench = Bench("gathered_sequence")
    for form in ("loop", "dynamic loop"):
        measured: dict[str, dict[int, Measured]] = {}
        for steps in LENGTHS:
            case = recurrent.case(form, steps, width=32, batch=4, wrt=("xs", *recurrent.WEIGHTS))
            systems = [
                forward(case),
                ours(case, "taped", plan="taped"),
                ours(case, "checkpointed", plan="checkpointed", trips=steps),
                *([onnx_ad(case)] if steps <= PEER_UP_TO else []),
            ]
            for name, figures in bench.measure(case, systems, rounds=2, seconds=1.0).items():
                measured.setdefault(name, {})[steps] = figures
        for name in ("taped", "checkpointed"):
            time = _exponent({steps: figures.cpu_s for steps, figures in measured[name].items()})
            bench.claim(f"{form}, {name}: exponent of the CPU time", time, at_most=MAX_EXPONENT)
            memory = _exponent({steps: figures.growth for steps, figures in measured[name].items()})
            bench.claim(f"{form}, {name}: exponent of the memory", memory, at_most=MAX_EXPONENT)
        if "onnx-ad" in measured:
            peer = _exponent({steps: figures.cpu_s for steps, figures in measured["onnx-ad"].items()})
            bench.report({"form": form, "system": "onnx-ad", "exponent_of_time": peer})
    bench.finish()


def _exponent(figures: dict[int, float]) -> float:
    """p where the figure grows as N^p, from the shortest to the longest."""
    low, high = min(figures), max(figures)
    return math.log(figures[high] / figures[low]) / math.log(high / low)


if __name__ == "__main__":
    main()
