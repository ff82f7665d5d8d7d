# Claim: for h = tanh(h W + x_t U + b) with H=256, B=16 and N=1,000, as a Scan, a Loop with a fixed and a Loop with
# a dynamic trip count, forward and gradient together take at most 3.3x the CPU time of the forward run with the
# full tape, and at most 3.8x checkpointed.
"""The time of a recurrent network's gradient."""

from __future__ import annotations

import recurrent
from gradients import eager, onnx_ad, ours
from meter import Bench, forward


def main() -> None:
    bench = Bench("w2_time")
    for form in recurrent.FORMS:
        case = recurrent.case(form, 1000)
        systems = [
            forward(case),
            ours(case, "taped", plan="taped"),
            ours(case, "checkpointed", plan="checkpointed"),
            onnx_ad(case),
            eager("recurrent"),
        ]
        measured = bench.measure(case, systems)
        bench.claim(f"{form}: full tape, times forward", measured["taped"].ratio, at_most=3.3)
        bench.claim(f"{form}: checkpointed, times forward", measured["checkpointed"].ratio, at_most=3.8)
    bench.finish()


if __name__ == "__main__":
    main()
