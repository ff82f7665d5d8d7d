"""From a model to an artifact: sample inputs, the cache, the target, the check against ONNX Runtime, the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad import weights
from onnx_cfad.errors import TargetError, ValidationError
from onnx_cfad.model import Source, load
from onnx_cfad.numeric.made_up import make_up_feeds
from onnx_cfad.ports import Feeds, check_feeds, ports_of
from onnx_cfad.runtime import Session
from onnx_cfad.saving import fingerprint
from onnx_cfad.targets.base import Array, Artifact, Options, Target, Tell, plain_feeds
from onnx_cfad.targets.cache import Cache, key_of
from onnx_cfad.targets.comparison import errors_of, first_difference
from onnx_cfad.targets.folders import cache_folder
from onnx_cfad.targets.known import target as target_named
from onnx_cfad.targets.manifest import NAME, InputEntry, Manifest, digests, read_manifest

_SEED = 0


def artifact_cache() -> Cache:
    """The cache of compiled artifacts in the user's cache folder."""
    return Cache(cache_folder() / "artifacts")


def compile_model(
    model: Source,
    target: str,
    output: str | os.PathLike[str] | None = None,
    *,
    feeds: Feeds | None = None,
    options: Options | None = None,
    check: bool = True,
    rtol: float | None = None,
    cache: Cache | None = None,
    tell: Tell = lambda _: None,
) -> Artifact:
    """Compiles a model, checks it against ONNX Runtime on sample inputs, and gives the artifact.

    Args:
        model: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.
        target: The target's name.
        output: The folder to write, whole or not at all; one that holds an artifact is replaced. Default: a temporary
            folder that goes with the artifact.
        feeds: Sample inputs, whose shapes are those to compile for; default: made up.
        options: How it is compiled.
        check: Compare the outputs with those of ONNX Runtime.
        rtol: The relative error that holds; default: by element type.
        cache: Where artifacts are kept; default: the user's.
        tell: Called with what is being done.

    Raises:
        ModelError: The model or the inputs are unusable.
        TargetError: The target is not there, or refuses the model; or the output cannot be written.
        ValidationError: The outputs are not those of ONNX Runtime.
    """
    chosen, compiler, store = options or Options(), target_named(target), cache or artifact_cache()
    final = None if output is None else _checked_output(Path(output))
    stamp = compiler.stamp(chosen)
    source = load(model)
    session = Session(source)
    samples = _samples(source, session, feeds)
    key = key_of(
        {
            "model": _content(source), "target": target, "stamp": stamp, "code": _code(), "check": check, "rtol": rtol,
            "options": dataclasses.asdict(dataclasses.replace(chosen, limits=None)),  # pyright: ignore[reportArgumentType]
            "feeds": _content_of(samples),
        }
    )  # fmt: skip
    with _Place(final) as place:
        if not store.fetch(key, place.folder):
            _make(compiler, source, session, samples, place.folder, chosen, stamp, check, rtol, tell)
            store.store(key, place.folder)
        folder = place.keep()
    artifact = compiler.open(folder, read_manifest(folder), chosen)
    if final is None:
        artifact.hold(place)
    return artifact


def open_artifact(folder: str | os.PathLike[str], options: Options | None = None) -> Artifact:
    """The artifact in a folder that ``compile_model`` has written.

    Raises:
        TargetError: The folder holds none, the target is not there, or it was compiled for another processor.
    """
    manifest = read_manifest(Path(folder))
    return target_named(manifest.target).open(Path(folder), manifest, options or Options())
