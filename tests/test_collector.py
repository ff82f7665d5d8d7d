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
