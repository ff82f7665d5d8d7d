"""Saving: whole or not at all, the same bytes every time."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad import saving, weights
from onnx_cfad.arrays import write_npz
from onnx_cfad.errors import ModelError
from onnx_cfad.model import fingerprint, load, normalise, save
from tests.test_weights import EXPECTED, MODEL, locations, result, write_model


def model() -> ir.Model:
    return normalise(load(onnx.parser.parse_model(MODEL)))


def test_saved_model_is_what_was_saved(tmp_path: pathlib.Path) -> None:
    save(model(), tmp_path / "m.onnx")
    assert result(tmp_path / "m.onnx") == EXPECTED
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_same_model_same_bytes(tmp_path: pathlib.Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save(model(), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_file_in_the_way_is_replaced(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.onnx").write_text("something else")
    save(model(), str(tmp_path / "m.onnx"))
    assert result(tmp_path / "m.onnx") == EXPECTED


def test_directory_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="the output is a directory"):
        save(model(), tmp_path)


def test_missing_folder_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match="the folder of the output does not exist"):
        save(model(), tmp_path / "nowhere" / "m.onnx")


@pytest.mark.parametrize("alias", ["model.onnx", "sub/../model.onnx", "link.onnx"])
def test_input_file_is_never_overwritten(alias: str, tmp_path: pathlib.Path) -> None:
    source = write_model(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.onnx").symlink_to(source)
    before = source.read_bytes()
    with pytest.raises(ModelError, match="the output is the input file"):
        save(load(source), tmp_path / alias, source=source)
    assert source.read_bytes() == before


def test_output_that_is_a_link_to_itself_is_refused(tmp_path: pathlib.Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to("link.onnx")
    with pytest.raises(ModelError, match="cannot be written: Too many levels of symbolic links"):
        save(model(), link)
    circle = tmp_path / "link.npz"
    circle.symlink_to("link.npz")
    with pytest.raises(ModelError, match="cannot be written: Too many levels of symbolic links"):
        write_npz(circle, {})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.npz", "link.onnx"]


def _fail(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stage", ["weights", "graph"])
def test_failure_leaves_everything_as_it_was(
    stage: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_model(tmp_path / "source")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "m.onnx").write_text("old model")
    (folder / "m.onnx.data").write_text("old weights")
    loaded = normalise(load(source))
    if stage == "weights":
        monkeypatch.setattr(weights, "_copy", _fail)
    else:
        monkeypatch.setattr(saving, "_serialize", _fail)
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be written: No space left on device"):
        save(loaded, folder / "m.onnx")
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"m.onnx": "old model", "m.onnx.data": "old weights"}


def test_unserializable_model_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_serialize", _fail)
    with pytest.raises(ModelError, match="cannot be written"):
        save(model(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_interruption_leaves_no_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: ir.Model) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "_serialize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(model(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_vanished_are_an_error(tmp_path: pathlib.Path) -> None:
    source = write_model(tmp_path / "source")
    loaded = normalise(load(source))
    (source.parent / "weights.bin").unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"cannot be written: No such file or directory: .*weights\.bin"):
        save(loaded, tmp_path / "out" / "m.onnx")
    assert list((tmp_path / "out").iterdir()) == []


def test_too_large_for_one_file_goes_outside(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "MAX_FILE_BYTES", 20)
    monkeypatch.setattr(saving, "_SMALL_BYTES", 8)
    large = model()
    save(large, tmp_path / "m.onnx")
    found = locations(tmp_path / "m.onnx")
    assert [location for location, _, _ in found] == ["m.onnx.data"] * 3
    assert result(tmp_path / "m.onnx") == EXPECTED
    assert not any(isinstance(v.const_value, ir.ExternalTensor) for v in large.graph.initializers.values())


@pytest.mark.slow
def test_three_gigabytes(tmp_path: pathlib.Path) -> None:
    """More than protobuf can hold; the pages of the array are never touched, so that they take no memory."""
    large = model()
    array = np.zeros((3, 1 << 28), np.float32)
    value = ir.Value(name="large", const_value=ir.tensor(array, name="large"))
    large.graph.initializers.add(value)
    first = fingerprint(large)
    save(large, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    assert (tmp_path / "m.onnx.data").stat().st_size == array.nbytes
    assert len(first) == 64


def test_fingerprint_is_of_the_content(tmp_path: pathlib.Path) -> None:
    assert fingerprint(model()) == fingerprint(model())
    changed = model()
    changed.graph.initializers["w"].const_value = ir.tensor(np.array([4, 5, 7], np.float32), name="w")
    assert fingerprint(changed) != fingerprint(model())
    save(model(), tmp_path / "m.onnx")
    assert fingerprint(load(tmp_path / "m.onnx")) == fingerprint(load(onnx.load(tmp_path / "m.onnx")))


def test_fingerprint_sees_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_HASHED_BYTES", 4)
    changed = model()
    changed.graph.initializers["w"].const_value = ir.tensor(np.array([4, 5, 7], np.float32), name="w")
    assert fingerprint(changed) != fingerprint(model()) == fingerprint(model())


def test_fingerprint_depends_on_where_external_data_is_and_does_not_read_it(tmp_path: pathlib.Path) -> None:
    first = fingerprint(load(write_model(tmp_path, "a.bin")))
    second = fingerprint(load(write_model(tmp_path, "b.bin")))
    (tmp_path / "b.bin").write_bytes(bytes(40))
    assert fingerprint(load(tmp_path / "model.onnx")) == second != first
