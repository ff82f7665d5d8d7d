"""Running models in ONNX Runtime: feeds are checked, outputs are named, errors are one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.ports import Port, ports_of
from onnx_cfad.runtime import Session
from tests.onnx_text import LOOP, model

X = np.asarray([0.5, -1.0], np.float32)
FEEDS: dict[str, Any] = {"x": X, "w": X, "trips": np.asarray(2), "up": np.asarray(True)}


def looped(**changes: Any) -> dict[str, Any]:
    return Session(model(LOOP), threads=1).run({**FEEDS, **changes})


def test_outputs_come_by_name() -> None:
    found = looped()
    step = np.tanh(X * X)
    np.testing.assert_allclose(found["y"], np.tanh(step * X), rtol=1e-6)
    assert found["ys"].shape == (2, 2)


def test_wanted_outputs_only() -> None:
    assert list(Session(model(LOOP)).run(FEEDS, ["ys"])) == ["ys"]
    with pytest.raises(ModelError, match="output 'z'.*'y', 'ys'"):
        Session(model(LOOP)).run(FEEDS, ["z"])


@pytest.mark.parametrize("kind", ["path", "proto", "ir"])
def test_sources(kind: str, tmp_path: Path) -> None:
    proto = model(LOOP)
    path = tmp_path / "loop.onnx"
    onnx.save(proto, path)
    source = {"path": path, "proto": proto, "ir": ir.from_proto(proto)}[kind]
    np.testing.assert_array_equal(Session(source).run(FEEDS)["y"], looped()["y"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, "inputs: no value is given for 'x' \\(float32\\[N\\]\\)"),
        ({"q": X}, "input 'q': the model has no such input; it has 'x', 'w', 'trips', 'up'"),
        ({"x": X.astype(np.float64)}, "input 'x': expected float32\\[N\\], found float64\\[2\\]"),
        ({"x": X.reshape(1, 2)}, "input 'x': expected float32\\[N\\], found float32\\[1, 2\\]"),
        ({"trips": np.asarray([2])}, "input 'trips': expected int64\\[\\], found int64\\[1\\]"),
    ],
)
def test_feeds_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    feeds = {name: value for name, value in {**FEEDS, **changes}.items() if value is not None}
    with pytest.raises(ModelError, match=message):
        Session(model(LOOP)).run(feeds)


def test_model_without_kernel_is_refused_in_one_line() -> None:
    with pytest.raises(TargetError, match="Could not find an implementation for Det.*no kernel") as raised:
        Session(model("g (double[2,2] x) => (double y) { y = Det (x) }"))
    assert "\n" not in str(raised.value)


def test_failed_run_is_one_line_without_source_locations() -> None:
    session = Session(model("g (float[A,B] x) => (float[A,B] y) { y = MatMul (x, x) }"))
    with pytest.raises(TargetError, match="MatMul") as raised:
        session.run({"x": np.zeros((2, 3), np.float32)})
    assert "\n" not in str(raised.value)
    assert "/onnxruntime/" not in str(raised.value)


def test_text_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("hello")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        Session(path)


def test_external_data_of_a_model_in_memory_is_found(tmp_path: Path) -> None:
    proto = model("g (float[300] x) => (float[300] y) { y = Mul (x, v) }")
    weight = onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32), "v")
    proto.graph.initializer.append(weight)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    loaded = ir.load(tmp_path / "m.onnx")
    found = Session(loaded).run({"x": np.ones(300, np.float32)})["y"]
    np.testing.assert_array_equal(found, np.arange(300, dtype=np.float32))


def test_sequences_go_in_and_out() -> None:
    session = Session(model("g (seq(float[N]) s, float[N] x) => (seq(float[N]) t) { t = SequenceInsert (s, x) }"))
    assert not session.inputs[0].tensor
    found = session.run({"s": [X, 2 * X], "x": 3 * X})["t"]
    assert [float(a[0]) for a in found] == [0.5, 1.0, 1.5]


def test_ports_tell_symbols_and_ranks() -> None:
    proto = model("""g (float[B,3] x, int64 n, string[2] s, float[B] d) => (float[B,3] y) <float[2] d = {1.0, 2.0}> {
        y = Identity (x)
    }""")
    unranked = proto.graph.input.add(name="u")
    unranked.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    ports = {port.name: port for port in ports_of(ir.from_proto(proto))}
    assert ports["x"] == Port("x", "float32", ("B", 3))
    assert ports["n"] == Port("n", "int64", ())
    assert ports["s"] == Port("s", "str", (2,))
    assert ports["u"] == Port("u", "float16", None)
    assert not ports["d"].required
    assert str(ports["x"]) == "float32[B, 3]"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime warns on standard error about what exporters leave in models: initializers that nothing reads."""
    text = "g (float[2] x) => (float[9] y) <float[2] unread = {1.0, 2.0}> { y = Identity (x) }"
    Session(model(text)).run({"x": X})
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
