"""A model with a loop, and inputs for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import FEEDS, saved
from tests.onnx_text import LOOP


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    return saved(LOOP, tmp_path / "loop.onnx")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, **FEEDS)
    return path
