"""What a target is, and what it makes of a model: an artifact, a folder that a fresh process can load and run."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.ports import Feeds, Port, check_feeds, describe, feeds_of
from onnx_cfad.targets.manifest import Manifest

Array = np.ndarray[Any, Any]
Tell = Callable[[str], None]
"""Called with what is being done."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one step in a target's worker may take.

    Attributes:
        seconds: Its time.
        memory_bytes: Its memory; None for half of the machine's.
    """

    seconds: float = 600.0
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """How a model is compiled.

    Attributes:
        build: ``relay`` or ``relax``; None for the first of these that is installed.
        form: ``whole`` (the model is one program of the target's own machine), ``host`` (straight-line bodies, driven
            by a host program), or ``auto``: whole where the target takes it and no loop is long.
        processor: The processor to compile for, by LLVM's name; ``native`` for this one.
        threads: Threads that a compiled kernel may use.
        limits: What each step may take.
        profile: What real runs did, as the JSON text of a profile: bodies of hot branches are compiled first, those of
            branches that no run took on their first use.
        tune: Seconds that a search for faster schedules may take over all bodies; None for no search.
    """

    build: str | None = None
    form: str = "auto"
    processor: str = "native"
    threads: int = 1
    limits: Limits = Limits()
    profile: str | None = None
    tune: float | None = None


class Artifact(abc.ABC):
    """A compiled model in a folder.

    Attributes:
        folder: Holds the libraries, the manifest and whatever else the target needs.
        manifest: What it is.
        compiled_on_use: Bodies that the last run has compiled, because it was the first to meet them, each with the
            number of its libraries.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.compiled_on_use: dict[str, int] = {}

    def __repr__(self) -> str:
        """The target, the form, the inputs with their shapes, the outputs, and where it is."""
        made = self.manifest
        inputs = ", ".join(f"{entry.name} {describe(entry.dtype, entry.shape)}" for entry in made.inputs)
        return f"<compiled for {made.target}, {made.form}: {inputs} -> {', '.join(made.outputs)}; in {self.folder}>"

    def run(self, feeds: Feeds, *, limits: Limits | None = None) -> dict[str, Any]:
        """The outputs by name.

        Args:
            feeds: The inputs by name.
            limits: What the run may take.

        Raises:
            ModelError: The feeds do not fit the model's inputs.
            TargetError: The run fails.
        """
        ports = [Port(entry.name, entry.dtype, entry.shape) for entry in self.manifest.inputs]
        check_feeds(ports, feeds)
        arrays = {port.name: np.asarray(feeds[port.name], order="C") for port in ports}
        return self._run(arrays, limits or Limits())

    @abc.abstractmethod
    def _run(self, feeds: Mapping[str, Array], limits: Limits) -> dict[str, Any]:
        """The outputs by name, for feeds that fit."""


class Target(abc.ABC):
    """Something that compiles models."""

    name: str

    @abc.abstractmethod
    def stamp(self, options: Options) -> dict[str, Any]:
        """What it would compile with: builds, versions, processor. Part of the manifest, and of the key of the cache.

        Raises:
            TargetError: It is not there.
        """

    def why_not_run(self) -> str | None:
        """Why what it compiles cannot be run on this machine; None where it can."""
        return None

    @abc.abstractmethod
    def lower(self, model: ir.Model, folder: Path, feeds: Mapping[str, Array], options: Options, tell: Tell) -> Lowered:
        """Compiles a model into a folder.

        Args:
            model: The model.
            folder: Where everything goes; empty.
            feeds: Sample inputs, whose shapes are those to compile for.
            options: How.
            tell: Called with what is being done.

        Raises:
            TargetError: It cannot be compiled.
        """

    @abc.abstractmethod
    def open(self, folder: Path, manifest: Manifest, options: Options) -> Artifact:
        """The artifact in a folder."""

    def blame(self, model: ir.Model, feeds: Mapping[str, Array], options: Options, rtol: float | None) -> str | None:  # noqa: ARG002
        """Where this target first gives another value than ONNX Runtime, in words; None where it cannot say."""
        return None


@dataclasses.dataclass(frozen=True)
class Lowered:
    """What a target says about what it has made.

    Attributes:
        form: In a few words, for readers.
        program: What the target's own ``open`` needs.
        notes: Reasons for choices.
        lasting: The same would come out another time; False where something was cut short, so that no cache keeps it.
    """

    form: str
    program: dict[str, Any]
    notes: tuple[str, ...] = ()
    lasting: bool = True


def plain_feeds(feeds: Feeds) -> dict[str, Array]:
    """Feeds as arrays.

    Raises:
        ModelError: One is a list, which no target takes.
    """
    for name, value in feeds_of(feeds).items():
        if isinstance(value, list):
            raise ModelError(f"input '{name}'", "is a sequence, which no target takes", "Run it in ONNX Runtime.")
    return {name: np.asarray(value) for name, value in feeds.items()}
