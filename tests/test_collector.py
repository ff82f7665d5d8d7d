"""The cycle collector rests inside, and runs behind where it ran before."""

from __future__ import annotations

import gc
import weakref

import pytest

from onnx_cfad.collector import collect_before_loading, loaded, resting_collector


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
    most = 0
    for _ in range(110):  # a whole cycle at least, wherever other tests have left it
        with resting_collector():
            _make_cycles(20_000)
        most = max(most, len(gc.get_objects()) - before)
    assert 900_000 < most < 1_200_000


@pytest.mark.parametrize("heavy", [False, True])
def test_garbage_is_collected_before_a_model_is_loaded(heavy: bool) -> None:
    collect_before_loading()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1 if heavy else 30):
        with resting_collector():
            _make_cycles(20_000)
    assert len(gc.get_objects()) - before > 15_000
    if heavy:
        loaded(2**28 + 1)
    collect_before_loading()
    assert len(gc.get_objects()) - before < 15_000


def test_nothing_is_collected_before_loading_where_the_collector_is_off() -> None:
    gc.disable()
    try:
        made = _make_cycles(10)
        left = weakref.ref(_Kept())
        loaded(2**28 + 1)
        collect_before_loading()
        assert left() is not None
        del made
    finally:
        gc.enable()
        collect_before_loading()


class _Kept:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


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
