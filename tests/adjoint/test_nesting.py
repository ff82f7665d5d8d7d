"""Nests of the corpus: differentiated, checked against differences, and run everywhere."""

from __future__ import annotations

import pytest

from tests.adjoint.agreement import assert_float32_follows, assert_levels_agree, assert_matches_differences, parameters
from tests.corpus import Maker

GROUPS = ("nests", "branch_nests", "branch_weights")


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_gradient_matches_differences(maker: Maker) -> None:
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_optimisation_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())


@pytest.mark.parametrize("maker", parameters(*GROUPS))
def test_float32_follows(maker: Maker) -> None:
    assert_float32_follows(maker)
