"""What is no file of a model is told apart by its first bytes."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from onnx_cfad.errors import ModelError
from onnx_cfad.model import load
from onnx_cfad.model_file import check_model_file

OTHERS = {
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "a pointer of Git LFS"),
    "web page": (b"\n<!DOCTYPE html><html><title>404</title></html>", "a web page"),
    "zip": (b"PK\x03\x04" + bytes(60), "an archive"),
    "gzip": (gzip.compress(b"model"), "an archive"),
    "ONNX Runtime": (b"\x28\x00\x00\x00ORTM" + bytes(60), "in ONNX Runtime's own format"),
    "pickle": (pickle.dumps({"weights": [1.0, 2.0]}), "a pickle of Python"),
    "text": ("# Ein Märchen\n".encode() * 100, "a text file"),
}


@pytest.mark.parametrize(("content", "message"), OTHERS.values(), ids=OTHERS)
def test_file_of_another_kind_is_called_by_its_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=f"model.onnx: is not an ONNX model but {message}"):
        load(tmp_path / "model.onnx")


def test_file_that_is_cut_short_is_not_taken_for_another_kind(tmp_path: Path) -> None:
    model = Path(__file__).parents[1] / "models" / "heat.onnx"
    (tmp_path / "model.onnx").write_bytes(model.read_bytes()[:1000])
    with pytest.raises(ModelError, match="is not an ONNX model, or is cut short"):
        load(tmp_path / "model.onnx")


def test_missing_file_is_taken_for_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").touch()
    for name in ("Encoder.onnx", "encoder.onx", "encodr.onnx"):
        with pytest.raises(ModelError, match=r"there is no such file\. Did you mean 'encoder\.onnx'\?"):
            check_model_file(tmp_path / name)
    with pytest.raises(ModelError, match=r"there is no such file\. Check the path\."):
        check_model_file(tmp_path / "no folder" / "encoder.onnx")


@pytest.mark.parametrize("target", ["link.onnx", "nowhere.onnx"])
def test_link_that_leads_to_no_file_is_called_so(target: str, tmp_path: Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to(target)
    with pytest.raises(ModelError, match="is a link that leads to no file"):
        check_model_file(link)
