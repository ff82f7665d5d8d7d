# Claim: for h = tanh(h W + x_t U + b), B=16, the checkpointed gradient by the weights needs, beyond inputs and
# outputs, at most 16 MiB for H=256 and N=10,000, at no more than 1.15x the CPU time of the full tape; at most 4 MiB
# for H=8 and N=100,000; at most 8 MiB for H=8 and N=1,000,000, there with at least 1.5x less CPU time than onnx-ad.
# The trip count is fixed (Scan, Loop) or known to the run only (dynamic Loop).
"""The memory of a recurrent network's gradient."""

from __future__ import annotations

import argparse

import recurrent
from gradients import eager, onnx_ad, ours
from meter import Bench, forward

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, choices=(10_000, 100_000, 1_000_000), help="one length only")
    steps = parser.parse_args().steps
    bench = Bench("w2_memory")
    for form in recurrent.FORMS:
        if steps in {None, 10_000}:
            _ten_thousand(bench, form)
        if steps in {None, 100_000}:
            _hundred_thousand(bench, form)
    if steps in {None, 1_000_000}:
        for form in ("scan", "dynamic loop"):
            _million(bench, form)
    bench.finish()


def _ten_thousand(bench: Bench, form: recurrent.Form) -> None:
    case = recurrent.case(form, 10_000)
    systems = [
        forward(case),
        ours(case, "taped", plan="taped"),
        ours(case, "checkpointed", plan="checkpointed"),
        onnx_ad(case),
        eager("recurrent"),
    ]
    measured = bench.measure(case, systems, at_most=4, seconds=3.0)
    taped, checkpointed = measured["taped"], measured["checkpointed"]
    bench.claim(f"{case.name}: MiB beyond inputs and outputs", checkpointed.beyond / MIB, at_most=16)
    first = checkpointed.figures["first_cpu_s"] / taped.figures["first_cpu_s"]
    bench.claim(f"{case.name}: time of a first run, times that of the full tape", first, at_most=1.15)
    again = checkpointed.cpu_s / taped.cpu_s
    bench.claim(f"{case.name}: time of later runs, times that of the full tape", again, at_most=1.15)


def _hundred_thousand(bench: Bench, form: recurrent.Form) -> None:
    case = recurrent.case(form, 100_000, width=8, inputs=4)
    systems = [forward(case), ours(case, "checkpointed", plan="checkpointed"), onnx_ad(case)]
    measured = bench.measure(case, systems, rounds=2, at_most=3, seconds=2.0)
    bench.claim(f"{case.name}: MiB beyond inputs and outputs", measured["checkpointed"].beyond / MIB, at_most=4)


def _million(bench: Bench, form: recurrent.Form) -> None:
    case = recurrent.case(form, 1_000_000, width=8, inputs=4)
    systems = [forward(case), ours(case, "checkpointed", plan="checkpointed"), onnx_ad(case)]
    measured = bench.measure(case, systems, rounds=1, at_most=2, seconds=1.0)
    bench.claim(f"{case.name}: MiB beyond inputs and outputs", measured["checkpointed"].beyond / MIB, at_most=8)
    if "onnx-ad" in measured:
        times = measured["onnx-ad"].cpu_s / measured["checkpointed"].cpu_s
        bench.claim(f"{case.name}: CPU time of onnx-ad, times ours", times, at_least=1.5)


if __name__ == "__main__":
    main()
