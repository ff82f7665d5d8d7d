"""A value that a build of TVM computes wrongly is named, with the node that gives it first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnx_cfad.rewriters.legalise as legalise_module
from onnx_cfad.errors import ValidationError
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.cache import Cache
from onnx_cfad.targets.compilation import compile_model
from tests.graph.reading import parsed

TEXT = """(float[6] x, int64 n) => (float[6] y) {
    y = Loop (n, , x) <body = body (int64 i, bool go, float[6] h) => (bool again, float[6] next) {
        again = Identity (go)
        half = Mul (h, h)
        [activation] bent = Gelu <approximate = "tanh"> (half)
        next = Sub (bent, h)
    }>
}"""


@pytest.mark.relay
def test_first_value_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its decomposition, Relay computes the tanh form of Gelu as the exact one."""
    table = {name: rule for name, rule in legalise_module.TABLES["relay"].items() if name != "Gelu"}
    monkeypatch.setitem(legalise_module.TABLES, "relay", table)
    feeds = {"x": np.linspace(-2, 2, 6, dtype=np.float32), "n": np.asarray(3)}
    with pytest.raises(ValidationError) as caught:
        compile_model(parsed(TEXT), "llvm", feeds=feeds, options=Options("relay", form="host"), cache=Cache(tmp_path))
    text = str(caught.value)
    assert "body 'main/y/body/0', call 1, Gelu" in text
    assert "gives the first value that differs, 'bent': relative error" in text
