"""Arrays in .npz files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_cfad.arrays import read_npz, write_npz
from onnx_cfad.errors import ModelError


def test_arrays_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = {"x/y:0": np.eye(2, dtype=np.float16), "file": np.asarray(3), "s": np.asarray(["a", "bc"], object)}
    write_npz(path, {**arrays, "sequence": [np.zeros(1), np.ones(2)]})
    found = read_npz(path)
    assert list(found) == ["x/y:0", "file", "s", "sequence[0]", "sequence[1]"]
    np.testing.assert_array_equal(found["x/y:0"], arrays["x/y:0"])
    assert found["x/y:0"].dtype == np.float16
    assert found["s"].tolist() == ["a", "bc"]
    assert found["sequence[1]"].shape == (2,)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npz"]


def spoil(path: Path, kind: str) -> None:
    if kind == "text":
        path.write_text("hello")
    elif kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "single":
        with path.open("wb") as file:
            np.save(file, np.zeros(2))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"x": 1}))
    elif kind == "objects":
        objects: Any = np.asarray([{"a": 1}], object)
        np.savez(path, x=objects)
    elif kind in ("truncated", "damaged"):
        np.savez_compressed(path, x=np.random.default_rng(0).standard_normal(1000))
        content = bytearray(path.read_bytes())
        content[200:400] = bytes(200)
        path.write_bytes(bytes(content) if kind == "damaged" else bytes(content[: len(content) // 2]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("absent", "there is no such file"),
        ("directory", "is a directory"),
        ("text", "is not a readable"),
        ("empty", "is not a readable"),
        ("single", "holds one array without a name"),
        ("pickle", "is not a readable"),
        ("objects", "it holds Python objects"),
        ("truncated", "is not a readable"),
        ("damaged", "is not a readable"),
    ],
)
def test_what_is_no_npz_is_refused(kind: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    spoil(path, kind)
    with pytest.raises(ModelError, match=message):
        read_npz(path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        write_npz(tmp_path, {})
    with pytest.raises(ModelError, match="folder of the output does not exist"):
        write_npz(tmp_path / "no" / "y.npz", {})
    assert list(tmp_path.iterdir()) == []
