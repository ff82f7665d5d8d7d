# Claim: the gradient by a sequence that a Loop reads element by element with Gather takes CPU time and memory
# linear in the length N, from 500 to 8,000 elements: the growth exponent of each is at most 1.1. So does that by one
# that is read in reverse, or in windows that overlap, from 1,000 to 16,000 elements.
"""The gradient by a gathered sequence."""

from __future__ import annotations

import math

import recurrent
from gradients import onnx_ad, ours
from meter import Bench, Measured, forward

LENGTHS = (500, 1000, 2000, 4000, 8000)
LONGER = (1000, 4000, 16000)
FORMS: tuple[tuple[recurrent.Form, recurrent.Reads, tuple[int, ...]], ...] = (
    ("loop", "row", LENGTHS),
    ("dynamic loop", "row", LENGTHS),
    ("loop", "reversed row", LONGER),
    ("dynamic loop", "reversed row", LONGER),
    ("loop", "windows of 3", LONGER),
)
PEER_UP_TO = 2000  # onnx-ad scatters into the whole sequence at each step: its time grows with the square of N
MAX_EXPONENT = 1.1


def main() -> None:
    bench = Bench("gathered_sequence")
    for form, reads, lengths in FORMS:
        measured: dict[str, dict[int, Measured]] = {}
        for steps in lengths:
            case = recurrent.case(form, steps, width=32, batch=4, wrt=("xs", *recurrent.WEIGHTS), reads=reads)
            systems = [
                forward(case),
                ours(case, "taped", plan="taped"),
                ours(case, "checkpointed", plan="checkpointed", trips=steps),
                *([onnx_ad(case)] if reads == "row" and steps <= PEER_UP_TO else []),
            ]
            for name, figures in bench.measure(case, systems, rounds=2, seconds=1.0).items():
                measured.setdefault(name, {})[steps] = figures
        what = form if reads == "row" else f"{form}, {reads}"
        for name in ("taped", "checkpointed"):
            time = _exponent({steps: figures.cpu_s for steps, figures in measured[name].items()})
            bench.claim(f"{what}, {name}: exponent of the CPU time", time, at_most=MAX_EXPONENT)
            memory = _exponent({steps: figures.growth for steps, figures in measured[name].items()})
            bench.claim(f"{what}, {name}: exponent of the memory", memory, at_most=MAX_EXPONENT)
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
