"""A result does not take the name of a file of another kind: arrays written over a model would be its end."""

from __future__ import annotations

from pathlib import Path

from onnx_cfad.errors import ModelError

_OF_OTHERS = {"model": (".npz", ".json"), "arrays": (".onnx", ".json"), "JSON": (".onnx", ".npz")}
_IS = {"model": "a model", "arrays": "arrays", "JSON": "JSON"}
_NAMED = {"model": "an .onnx", "arrays": "an .npz", "JSON": "a .json"}


def check_suffix(target: Path, kind: str) -> None:
    """Refuses a file name that says another kind than ``kind``: "model", "arrays" or "JSON".

    Raises:
        ModelError: It does.
    """
    suffix = target.suffix.lower()
    if suffix in _OF_OTHERS[kind]:
        what = f"the output is {_IS[kind]}, and {suffix} is the name of something else"
        raise ModelError(str(target), what, f"Name {_NAMED[kind]} file.")
