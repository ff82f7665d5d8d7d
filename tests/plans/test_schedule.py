"""Schedules are pure data: they are simulated over a grid of trips, segments and levels."""

from __future__ import annotations

import itertools
import time

import pytest

from onnx_cfad.plans.schedule import Schedule, best_segment

GRID = list(itertools.product((1, 2, 3, 7, 24, 100), (1, 2, 3, 5, 10), (1, 2, 3)))


@pytest.mark.parametrize(("trips", "segment", "levels"), GRID)
def test_every_iteration_is_swept_once_in_reverse_and_only_after_its_carry_is_there(
    trips: int, segment: int, levels: int
) -> None:
    """A simulation: sweeping iteration i needs its entry, which a run of i - 1 or a checkpoint gives."""
    schedule = Schedule(trips, segment, levels)
    boundaries = {span.start for level in range(2, levels + 1) for span in schedule.spans(level)}
    available = set(range(trips)) if levels == 1 else {s.start for s in schedule.spans(levels)}
    swept: list[int] = []
    for action, iteration in schedule.order():
        if action == "run":
            assert iteration in available, f"iteration {iteration} is run without its carry"
            available.add(iteration + 1)
        else:
            assert iteration in available, f"iteration {iteration} is swept without its carry"
            swept.append(iteration)
            available -= {i for i in available if i > iteration and i not in boundaries}
    assert swept == list(range(trips))[::-1]


@pytest.mark.parametrize(("trips", "segment", "levels"), GRID)
def test_no_iteration_is_run_more_often_than_promised(trips: int, segment: int, levels: int) -> None:
    schedule = Schedule(trips, segment, levels)
    runs = [iteration for action, iteration in schedule.order() if action == "run"]
    assert max(map(runs.count, runs), default=0) <= schedule.replays


def test_literal_order_of_a_small_schedule() -> None:
    assert list(Schedule(5, 2).order()) == [
        ("run", 4), ("sweep", 4),
        ("run", 2), ("run", 3), ("sweep", 3), ("sweep", 2),
        ("run", 0), ("run", 1), ("sweep", 1), ("sweep", 0),
    ]  # fmt: skip


def test_memory_grows_with_the_root_of_the_trip_count() -> None:
    """From N to 100 N the peak of the best two-level schedule grows tenfold, that of a full tape a hundredfold."""
    carry, iteration = 1024, 4096

    def peak(trips: int) -> int:
        return Schedule(trips, best_segment(trips, carry, iteration, divides=False)).peak_bytes(carry, iteration)

    assert 8 < peak(1_000_000) / peak(10_000) < 12.5
    assert Schedule(1_000_000, 1, 1).peak_bytes(carry, iteration) == 1_000_000 * iteration


def test_third_level_saves_more() -> None:
    trips, carry, iteration = 1_000_000, 1 << 20, 2 << 20
    two = Schedule(trips, best_segment(trips, carry, iteration, divides=False))
    three = Schedule(trips, best_segment(trips, carry, iteration, divides=False, levels=3), 3)
    assert three.peak_bytes(carry, iteration) < two.peak_bytes(carry, iteration) / 3


@pytest.mark.parametrize("trips", [12, 100, 1000, 10_000, 99_856, 1_000_000])
def test_fixed_trip_counts_get_a_divisor(trips: int) -> None:
    assert trips % best_segment(trips, 16384, 3 * 16384, divides=True) == 0


def test_planning_a_million_iterations_takes_no_time() -> None:
    start = time.perf_counter()
    for _ in range(100):
        Schedule(10**6, best_segment(10**6, 32, 200, divides=True)).peak_bytes(32, 200)
    assert (time.perf_counter() - start) / 100 < 1e-3  # microseconds when the machine is idle


@pytest.mark.parametrize("trips", [0, 1, 2])
def test_short_loops_have_segments_that_fit(trips: int) -> None:
    assert 1 <= best_segment(trips, 8, 8, divides=True) <= max(trips, 1)
