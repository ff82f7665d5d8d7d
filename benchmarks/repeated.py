"""Runs something several times in this process and says what each run took."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import resident


@dataclasses.dataclass(frozen=True)
class Runs:
    """What repeated runs took.

    Attributes:
        cpu_s: Processor seconds of the fastest run.
        wall_s: Seconds of the fastest run.
        first_cpu_s: Processor seconds of the first run.
        growth_first: Bytes: peak resident during the first run, less what was resident before it.
        growth_second: Bytes: peak resident during the second run, less what was resident before the first one.
        runs: How many runs there were.
        load: Load average of the machine afterwards.
    """

    cpu_s: float
    wall_s: float
    first_cpu_s: float
    growth_first: int
    growth_second: int
    runs: int
    load: float


def repeat(run: Callable[[], Any], at_most: int, seconds: float) -> tuple[Runs, Any]:
    """Runs ``run`` twice, then again until ``at_most`` runs or ``seconds`` have passed; also gives the last result.

    With ``at_most=1`` there is no second run, and its growth is that of the first.
    """
    resident.give_back()
    before = resident.resident()
    cpu: list[float] = []
    wall: list[float] = []
    peaks: list[int] = []
    result: Any = None
    while len(cpu) < min(2, at_most) or (len(cpu) < at_most and sum(wall) < seconds):
        result = None
        resident.reset_peak()
        started, started_cpu = time.perf_counter(), time.process_time()
        result = run()
        cpu.append(time.process_time() - started_cpu)
        wall.append(time.perf_counter() - started)
        peaks.append(resident.peak())
    growth = [peak - before for peak in peaks[:2]]
    load = round(os.getloadavg()[0], 1)
    return Runs(min(cpu), min(wall), cpu[0], growth[0], growth[-1], len(cpu), load), result
