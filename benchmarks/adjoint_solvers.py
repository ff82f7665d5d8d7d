# Claim: for the gradient of a fixed point, the automatic choice of a solver takes at most 1.5x the CPU time of the best
# one that can be named, for states of 256 to 12,288 elements, contracting by 0.5, 0.9 and 0.99, in float32 and float64.
"""The solvers of the adjoint system of a fixed point, from which the numbers of the automatic choice come."""

from __future__ import annotations

import numpy as np
import w5_implicit
from gradients import ours
from meter import Bench, forward

SOLVERS = ("auto", "neumann", "bicgstab", "gmres", "anderson")
WIDTHS = (16, 64, 256, 768)  # of 16 rows


def main() -> None:
    bench = Bench("adjoint_solvers")
    for name, tolerance in (("float32", 1e-5), ("float64", 1e-11)):
        for width in WIDTHS:
            for radius in w5_implicit.RADII:
                case = w5_implicit.case_of(radius, np.dtype(name), tolerance, width=width)
                systems = [ours(case, s, sites=(f"main/solve=implicit(solver={s})",)) for s in SOLVERS]
                measured = bench.measure(case, [forward(case), *systems], at_most=10, rounds=2, seconds=0.5)
                best = min(measured[solver].ratio for solver in SOLVERS)
                bench.claim(f"{case.name}, 16 x {width}: times the best", measured["auto"].ratio / best, at_most=1.5)
    bench.finish()


if __name__ == "__main__":
    main()
