"""The target ``llvm``: machine code for this CPU, by Relay or Relax.

A whole model becomes a program of Relay's virtual machine. Where Relay refuses it, where a loop is long (that machine
keeps a frame for every iteration), or with Relax, straight-line bodies are compiled, and a host program drives them in
the worker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.regions import is_loop, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.model import normalise
from onnx_cfad.saving import save
from onnx_cfad.targets.base import Array, Artifact, Limits, Lowered, Options, Target, Tell
from onnx_cfad.targets.manifest import Manifest
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.builds import BUILDS
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.programs import joined, split
from onnx_cfad.targets.tvm.specialise import meet, write_bodies
from onnx_cfad.targets.tvm.worker import Worker, shared_worker

LONG = 1_000
"""Trips from which on a loop is left to the host; a virtual machine of Relay holds some 17 kB for each."""

_LIBRARY, _PROGRAM, _BODIES = "model.so", "program.json", "bodies"
_WHOLE = ("auto", "whole")


class Llvm(Target):
    """Machine code by TVM."""

    name = "llvm"

    def stamp(self, options: Options) -> dict[str, Any]:
        """The build, its versions, and the processor; see ``Target``."""
        if options.form not in (*_WHOLE, "host"):
            raise TargetError(f"form '{options.form}'", "there is no such form", "Choose auto, whole or host.")
        kind = options.build or _installed()
        versions = dict(_worker(kind, options).call("versions")[0])
        del versions["peak_bytes"]
        own = str(versions.pop("processor"))
        native = options.processor == "native"
        return {
            "build": kind,
            "versions": versions,
            "processor": own if native else options.processor,
            "native": native,
        }

    def lower(self, model: ir.Model, folder: Path, feeds: Mapping[str, Array], options: Options, tell: Tell) -> Lowered:
        """Compiles ``model``; see ``Target``."""
        stamp = self.stamp(options)
        kind, title = stamp["build"], BUILDS[stamp["build"]].title
        step = _Step(_worker(kind, options), {"processor": stamp["processor"]}, options.limits)
        notes: list[str] = []
        model = normalise(model)
        if kind == "relay" and options.form in _WHOLE:
            reason = _too_long(model) if options.form == "auto" else None
            if reason is None:
                try:
                    tell(f"{title}: the whole model")
                    return _whole(model, folder, feeds, step)
                except TargetError as error:
                    if options.form == "whole":
                        raise
                    reason = error.what
            notes.append(f"not one program of {title}: {reason}")
        elif options.form == "whole":
            raise TargetError(title, "it has no loops, so no form 'whole'", "Choose host, or --with relay.")
        tell(f"{title}: bodies for a host program")
        return _hosted(model, folder, feeds, step, tuple(notes))

    def open(self, folder: Path, manifest: Manifest, options: Options) -> Artifact:
        """The artifact in ``folder``; see ``Target``."""
        kind = str(manifest.stamp["build"])
        worker = _worker(kind, options)
        here = worker.call("versions")[0]["processor"]
        wanted = manifest.stamp["processor"]
        if wanted != here and manifest.stamp["native"]:
            text = f"it was compiled for the processor {wanted}, and this is {here}"
            raise TargetError(str(folder), text, "Compile the model again, or with --processor x86-64-v2.")
        step = _Step(worker, {"processor": wanted}, options.limits)
        return _Compiled(folder, manifest, step)


class _Step:
    """A worker, the compiler's options, and limits."""

    def __init__(self, worker: Worker, options: dict[str, Any], limits: Limits) -> None:
        self.worker, self.options, self.limits = worker, options, limits

    def call(
        self, name: str, arguments: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Runs a command of the worker within the limits."""
        return self.worker.call(
            name, {**arguments, "options": self.options}, arrays,
            timeout_s=self.limits.seconds, memory_bytes=self.limits.memory_bytes,
        )  # fmt: skip


class _Compiled(Artifact):
    """A whole model, or a host program with its bodies."""

    def __init__(self, folder: Path, manifest: Manifest, step: _Step) -> None:
        super().__init__(folder, manifest)
        self._step = step

    def _run(self, feeds: Mapping[str, Array], limits: Limits) -> dict[str, Any]:
        step = _Step(self._step.worker, self._step.options, limits)
        if "library" in self.manifest.program:
            results = _run_whole(self.folder, feeds, step)
            return dict(zip(self.manifest.outputs, results, strict=True))
        return _run_hosted(self.folder, self.manifest.program, feeds, step)


def _installed() -> str:
    for kind in BUILDS:
        if environments.find(kind).python is not None:
            return kind
    raise TargetError("target 'llvm'", "no build of TVM is installed", "Run: onnx-cfad targets install relay")


def _worker(kind: str, options: Options) -> Worker:
    return shared_worker(kind, environments.interpreter(kind), threads=options.threads)


def _too_long(model: ir.Model) -> str | None:
    """Why a model is better not left to the virtual machine: the number of iterations that it fixes."""
    for node in model.graph.all_nodes():
        bound = trip_count(loop_site(node)).bound if is_loop(node) else None
        if bound is not None and bound > LONG:
            return f"a loop of {bound:,} iterations"
    return None


def _whole(model: ir.Model, folder: Path, feeds: Mapping[str, Array], step: _Step) -> Lowered:
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as temporary:
        path = Path(temporary) / "model.onnx"
        save(model, path)
        shapes = {name: list(feed.shape) for name, feed in feeds.items()}
        arguments = {"model": str(path), "library": str(folder / _LIBRARY), "shapes": shapes}
        step.call("compile_model", arguments)
    _run_whole(folder, feeds, step)
    return Lowered("one program of Relay's virtual machine", {"library": _LIBRARY})


def _run_whole(folder: Path, feeds: Mapping[str, Array], step: _Step) -> list[Array]:
    arrays = {str(index): feed for index, feed in enumerate(feeds.values())}
    results = step.call("run_library", {"library": str(folder / _LIBRARY)}, arrays)[1]
    return [results[str(index)] for index in range(len(results))]


def _hosted(model: ir.Model, folder: Path, feeds: Mapping[str, Array], step: _Step, notes: tuple[str, ...]) -> Lowered:
    parts = partition(model)
    stems = {name: f"body{index}" for index, name in enumerate(parts.bodies)}
    (folder / _BODIES).mkdir()
    met, _ = meet(parts, feeds)
    write_bodies(parts, met, folder / _BODIES, stems, step.worker.kind)
    (folder / _PROGRAM).write_text(parts.program.to_json(), encoding="utf-8")
    program = {"stems": stems, "guarded": {name: list(record.guarded) for name, record in met.items()}}
    _run_hosted(folder, program, feeds, step)
    return Lowered(f"a host program over {len(stems)} bodies", program, notes)


def _run_hosted(folder: Path, program: Mapping[str, Any], feeds: Mapping[str, Array], step: _Step) -> dict[str, Any]:
    flat, lists = split(feeds)
    places = {"program": str(folder / _PROGRAM), "bodies": str(folder / _BODIES), "lists": lists}
    result, arrays = step.call("run_program", {**places, **program}, flat)
    return joined(arrays, result["lists"])
