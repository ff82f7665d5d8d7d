"""Random draws in bodies: what the forward pass drew is what the reverse pass reads."""

from __future__ import annotations

import pytest

from tests.adjoint.agreement import assert_levels_agree, assert_matches_differences, parameters
from tests.corpus import Maker


@pytest.mark.parametrize("maker", parameters("draws"))
def test_gradient_matches_differences(maker: Maker) -> None:
    """With a fixed seed every run draws the same numbers, so that differences exist."""
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters("draws"))
def test_optimisation_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())
