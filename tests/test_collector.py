"""The cycle collector rests inside, and runs behind where it ran before."""

from __future__ import annotations

import gc

import pytest

from onnx_cfad.collector import resting_collector


def test_the_collector_rests_and_runs_again() -> None:
    assert gc.isenabled()
    with resting_collector():
        assert not gc.isenabled()
        with resting_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_runs_again_behind_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), resting_collector():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with resting_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def _make_cycles(count: int) -> list[list[object]]:
    made: list[list[object]] = [[] for _ in range(count)]
    for each in made:
        each.append(each)
    return made


def test_what_a_stage_made_is_not_looked_through_behind_it() -> None:
    gc.collect()
    with resting_collector():
        kept = _make_cycles(20_000)
        assert gc.get_count()[0] > 20_000
    young = {id(each) for each in gc.get_objects(generation=0)}
    assert young.isdisjoint(map(id, kept))
    assert gc.get_freeze_count() == 0


def test_garbage_of_many_stages_is_collected() -> None:
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        with resting_collector():
            _make_cycles(20_000)
    assert len(gc.get_objects()) - before < 200_000


def test_what_was_kept_from_the_collector_stays_so() -> None:
    gc.collect()
    kept = _make_cycles(10)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with resting_collector():
            _make_cycles(20_000)
        assert 0 < gc.get_freeze_count() <= frozen
        assert {id(each) for each in gc.get_objects()}.isdisjoint(map(id, kept))
    finally:
        gc.unfreeze()
