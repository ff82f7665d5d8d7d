"""A Scan as a Loop: axes, directions and lengths that only the run knows."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.scan_to_loop import ScanToLoopPass
from tests.graph.reading import parsed
from tests.rewriters.check_pass import operators, run

SCAN = """(float[2] x, float[DIMS] a) => (float[2] y, float[ROWS] rows) {
    y, rows = Scan <num_scan_inputs = 1, scan_input_axes = [AXIS], scan_input_directions = [BACK],
        scan_output_axes = [TO], scan_output_directions = [TURNED], body = step (float[2] h, float[2] u)
        => (float[2] next, float[2] row) { s = Add (h, u)  next = Sin (s)  row = Mul (next, u) }> (x, a)
}"""


@pytest.mark.parametrize(("axis", "back", "to", "turned"), [*itertools.product((0, 1, -2), (0, 1), (0, 1, -1), (0, 1))])
@pytest.mark.parametrize("length", ["5", "n"])
def test_axes_and_directions(length: str, axis: int, back: int, to: int, turned: int) -> None:
    dims, rows = ([length, "2"] if a % 2 == 0 else ["2", length] for a in (axis, to))
    words = {"DIMS": ", ".join(dims), "ROWS": ", ".join(rows), "AXIS": axis, "BACK": back, "TO": to, "TURNED": turned}
    text = SCAN
    for word, value in words.items():
        text = text.replace(word, str(value))
    model = parsed(text)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 2) if axis % 2 == 0 else (2, 5)).astype(np.float32)
    feeds = {"x": np.ones(2, np.float32), "a": a}
    expected = run(ir.to_proto(model), feeds)
    infer_types(model)
    assert ScanToLoopPass()(model).modified
    assert "Scan" not in operators(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for found, wanted in zip(run(proto, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_scan_that_is_not_wanted_stays() -> None:
    text = SCAN.replace("DIMS", "5, 2").replace("ROWS", "5, 2")
    for word in ("AXIS", "BACK", "TO", "TURNED"):
        text = text.replace(word, "0")
    assert not ScanToLoopPass(lambda _: False)(parsed(text)).modified
