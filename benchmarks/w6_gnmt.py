# Claim: for a translation network with 2 + 2 LSTM layers written as Loops and attention at each step (H=256, B=8,
# S=50, 100, 200), forward and gradient together take at most 5x the CPU time of the forward run with the full tape;
# checkpointed, what they need beyond the forward run and the gradients is at least 90 % less than with the full
# tape, at no more than 1.25x its time, and the whole growth is at least 72 % less. The claims about memory are for
# additive attention, which is that of GNMT v2; with product attention the tape is hardly larger than the weights.
"""Time and memory of the gradient of a translation network."""

from __future__ import annotations

import argparse

import gnmt
from gradients import eager, onnx_ad, ours
from meter import Bench, Case, Measured, forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 200], help="S")
    parser.add_argument("--attention", nargs="+", default=["additive", "product"], choices=["additive", "product"])
    arguments = parser.parse_args()
    bench = Bench("w6_gnmt")
    for attention in arguments.attention:
        for steps in arguments.steps:
            _measure(bench, gnmt.case(attention, steps), memory=attention == "additive")
    bench.finish()


def _measure(bench: Bench, case: Case, *, memory: bool) -> None:
    systems = [
        forward(case),
        ours(case, "taped", plan="taped"),
        ours(case, "checkpointed", plan="checkpointed"),
        onnx_ad(case),
        eager("gnmt"),
    ]
    measured = bench.measure(case, systems, rounds=2, at_most=10, seconds=1.5)
    taped, checkpointed = measured["taped"], measured["checkpointed"]
    bench.claim(f"{case.name}: full tape, times forward", taped.ratio, at_most=5)
    if not memory:
        return
    ratio = checkpointed.cpu_s / taped.cpu_s
    own = measured["forward"]
    saved = 1 - _beyond(checkpointed, own) / _beyond(taped, own)
    bench.claim(f"{case.name}: checkpointed, time in units of the full tape's", ratio, at_most=1.25)
    bench.claim(f"{case.name}: part of the tape's memory that is saved", saved, at_least=0.9)
    bench.claim(f"{case.name}: part of the growth that is saved", 1 - checkpointed.growth / taped.growth, at_least=0.72)


def _beyond(measured: Measured, own: Measured) -> int:
    """Bytes beyond the forward run's growth and the gradients."""
    return max(measured.beyond - own.growth, 0)


if __name__ == "__main__":
    main()
