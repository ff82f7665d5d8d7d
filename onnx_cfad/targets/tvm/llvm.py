"""The target ``llvm``: machine code for this CPU, by Relay or Relax.

A whole model becomes a program of Relay's virtual machine. Where Relay refuses it, where a loop is long (that machine
keeps a frame for every iteration), or with Relax, straight-line bodies are compiled, and a host program drives them in
the worker.
"""

from __future__ import annotations

import difflib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.regions import is_loop, label, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import legalise
from onnx_cfad.runtime import Session
from onnx_cfad.saving import save
from onnx_cfad.targets.base import Array, Artifact, Limits, Lowered, Options, Target, Tell
from onnx_cfad.targets.comparison import first_difference
from onnx_cfad.targets.manifest import Manifest
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.bisect import blame
from onnx_cfad.targets.tvm.builds import BUILDS
from onnx_cfad.targets.tvm.partition import Whole, partition
from onnx_cfad.targets.tvm.programs import joined, split
from onnx_cfad.targets.tvm.specialise import meet, write_bodies
from onnx_cfad.targets.tvm.whole_loop import whole, why_not_whole, with_shapes
from onnx_cfad.targets.tvm.worker import BodyError, Worker, shared_worker

LONG = 1_000
"""Trips from which on a loop is left to the host; a virtual machine of Relay holds some 17 kB for each."""

_LIBRARY, _PROGRAM, _BODIES = "model.so", "program.json", "bodies"
_WHOLE = ("auto", "whole")
_MACHINES = {"relay": "one program of Relay's virtual machine", "relax": "one compiled function"}


class Llvm(Target):
    """Machine code by TVM."""

    name = "llvm"

    def stamp(self, options: Options) -> dict[str, Any]:
        """The build, its versions, and the processor; see ``Target``."""
        if options.form not in (*_WHOLE, "host"):
            raise TargetError(f"form '{options.form}'", "there is no such form", "Choose auto, whole or host.")
        kind = options.build or _installed()
        worker = _worker(kind, options)
        versions = dict(worker.call("versions")[0])
        del versions["peak_bytes"]
        own = str(versions.pop("processor"))
        native = options.processor == "native"
        if not native:
            _check_processor(options.processor, worker)
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
        model = _with_inputs_of(model, feeds)
        if kind == "relax":
            model = with_shapes(model)
        infer_types(model)
        notes: list[str] = []
        if options.form in _WHOLE:
            reason = _why_not_whole(model, kind) if options.form == "auto" else None
            if reason is None:
                try:
                    tell(f"{title}: the whole model")
                    legal = legalise(model, kind)
                    lowered, results = _whole(legal, folder, feeds, step, _MACHINES[kind])
                    reason = None if options.form == "whole" else _difference(model, feeds, results)
                    if reason is None:
                        return lowered
                except TargetError as error:
                    if options.form == "whole":
                        raise
                    reason = error.what
                (folder / _LIBRARY).unlink(missing_ok=True)
            notes.append(f"not {_MACHINES[kind]}: {reason}")
        tell(f"{title}: bodies for a host program")
        return _hosted_with_functions(model, folder, feeds, step, notes, kind)

    def open(self, folder: Path, manifest: Manifest, options: Options) -> Artifact:
        """The artifact in ``folder``; see ``Target``."""
        kind = str(manifest.stamp["build"])
        worker = _worker(kind, options)
        versions = worker.call("versions")[0]
        here, wanted = versions["processor"], manifest.stamp["processor"]
        release = manifest.stamp["versions"]["tvm"]
        if versions["tvm"] != release:
            text = f"it was compiled by TVM {release}, and this is {versions['tvm']}"
            raise TargetError(str(folder), text, "Compile the model again.")
        if wanted != here and manifest.stamp["native"]:
            text = f"it was compiled for the processor {wanted}, and this is {here}"
            raise TargetError(str(folder), text, "Compile the model again, or with --processor x86-64-v2.")
        step = _Step(worker, {"processor": wanted}, options.limits)
        return _Compiled(folder, manifest, step)

    def blame(self, model: ir.Model, feeds: Mapping[str, Array], options: Options, rtol: float | None) -> str | None:
        """The first value that differs; see ``Target``."""
        kind = options.build or _installed()
        try:
            found = blame(model, feeds, _worker(kind, options), rtol=rtol, seconds=options.limits.seconds)
        except TargetError as error:
            return f"where is not known: {error}"
        return found or "no body of a host program differs by itself, so rounding errors may have grown on the way"


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


def _check_processor(name: str, worker: Worker) -> None:
    known = worker.call("processors_known")[0]["names"]
    if name not in known:
        near = difflib.get_close_matches(name, known, 3) or [n for n in known if n.startswith("x86-64")]
        what = "LLVM knows no processor of that name"
        raise TargetError(f"processor '{name}'", what, f"Such as {', '.join([*near, 'native'])}.")


def _installed() -> str:
    for kind in BUILDS:
        if environments.find(kind).python is not None:
            return kind
    raise TargetError("target 'llvm'", "no build of TVM is installed", "Run: onnx-cfad targets install relay")


def _worker(kind: str, options: Options) -> Worker:
    return shared_worker(kind, environments.interpreter(kind), threads=options.threads)


def _with_inputs_of(model: ir.Model, feeds: Mapping[str, Array]) -> ir.Model:
    """``model`` in normal form, its inputs declared as the sample inputs are; those with a default become constants."""
    model = normalise(model)
    for value in list(model.graph.inputs):
        if value.name in feeds:
            value.shape = ir.Shape(feeds[value.name or ""].shape)
        else:
            model.graph.inputs.remove(value)
    return model


def _why_not_whole(model: ir.Model, kind: str) -> str | None:
    """Why a model is better not compiled as one, before it is tried."""
    loops = [node for node in model.graph if is_loop(node)]
    if kind == "relax":
        return next(filter(None, map(why_not_whole, loops)), None)
    return next(filter(None, map(_why_not_machine, filter(is_loop, model.graph.all_nodes()))), None)


def _why_not_machine(node: ir.Node) -> str | None:
    """Why a loop is better not left to Relay's virtual machine."""
    site = loop_site(node)
    trips = trip_count(site)
    if trips.bound is not None and trips.bound > LONG:
        return f"a loop of {trips.bound:,} iterations"
    if site.outputs and not trips.positive:  # Relay's has the shape [0, 1] then, whatever the rows would be
        return f"{label(node)} stacks values, and may run no iteration"
    return None


def _whole(
    model: ir.Model, folder: Path, feeds: Mapping[str, Array], step: _Step, form: str
) -> tuple[Lowered, list[Array]]:
    """What was made of the whole model, and what it gives for the sample inputs."""
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as temporary:
        path = Path(temporary) / "model.onnx"
        save(model, path)
        shapes = {name: list(feed.shape) for name, feed in feeds.items()}
        arguments = {"model": str(path), "library": str(folder / _LIBRARY), "shapes": shapes}
        step.call("compile_model", arguments)
    return Lowered(form, {"library": _LIBRARY}), _run_whole(folder, feeds, step)


def _difference(model: ir.Model, feeds: Mapping[str, Array], results: Sequence[Array]) -> str | None:
    """In what the results of the whole model are not those of ONNX Runtime; None where they are."""
    session = Session(model)
    difference = first_difference(dict(zip(session.outputs, results, strict=True)), session.run(feeds))
    return None if difference is None else f"output '{difference.output}' differs from ONNX Runtime: {difference.what}"


def _run_whole(folder: Path, feeds: Mapping[str, Array], step: _Step) -> list[Array]:
    arrays = {str(index): feed for index, feed in enumerate(feeds.values())}
    results = step.call("run_library", {"library": str(folder / _LIBRARY)}, arrays)[1]
    return [results[str(index)] for index in range(len(results))]


def _hosted_with_functions(
    model: ir.Model, folder: Path, feeds: Mapping[str, Array], step: _Step, notes: Sequence[str], kind: str
) -> Lowered:
    """A host program in which a loop is one function where the build makes one of it."""
    refused: dict[str, str] = {}

    def is_function(node: ir.Node) -> bool:
        return kind == "relax" and _first_output(node) not in refused and whole(node)

    while True:
        reasons = [f"the host runs {site}: {reason}" for site, reason in refused.items()]
        try:
            return _hosted(model, folder, feeds, step, (*notes, *reasons), is_function)
        except BodyError as error:
            sites = [node for node in partition(model, is_function).bodies[error.body].graph if is_loop(node)]
            if not sites:
                raise
            refused.update((_first_output(node), error.what) for node in sites)
            shutil.rmtree(folder / _BODIES)


def _first_output(node: ir.Node) -> str:
    return node.outputs[0].name or ""


def _hosted(
    model: ir.Model, folder: Path, feeds: Mapping[str, Array], step: _Step, notes: tuple[str, ...], whole: Whole
) -> Lowered:
    parts = partition(model, whole)
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
