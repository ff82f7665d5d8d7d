"""The target ``llvm``: machine code for this CPU, by Relay or Relax.

A whole model becomes a program of Relay's virtual machine, its long loops in two levels. Where Relay refuses it, where
a long loop stacks values, or with Relax, straight-line bodies are compiled, and a host program drives them in the
worker.
"""

from __future__ import annotations

import dataclasses
import difflib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.regions import is_branch, is_loop, label, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.rewriters.legalise import LONG, MOST_ROW_BYTES, legalise, refuse_draws
from onnx_cfad.runtime import Session
from onnx_cfad.saving import save
from onnx_cfad.targets.base import Array, Artifact, Limits, Lowered, Options, Target, Tell
from onnx_cfad.targets.branch_order import branch_order
from onnx_cfad.targets.comparison import first_difference
from onnx_cfad.targets.manifest import Manifest
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.bisect import blame
from onnx_cfad.targets.tvm.builds import BUILDS
from onnx_cfad.targets.tvm.hosted import Plan, hosted, run_hosted
from onnx_cfad.targets.tvm.kept_on_host import why_kept
from onnx_cfad.targets.tvm.prepared import prepared
from onnx_cfad.targets.tvm.signatures import signature_of
from onnx_cfad.targets.tvm.step import Step
from onnx_cfad.targets.tvm.tuning import Outcome, Tunable, tune
from onnx_cfad.targets.tvm.whole_loop import why_not_whole
from onnx_cfad.targets.tvm.worker import Worker, shared_worker

_LIBRARY = "model.so"
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
        step = Step(_worker(kind, options), {"processor": stamp["processor"]}, options.limits)
        order = branch_order(model, options.profile)
        if options.tune is not None:
            step.call("search_is_possible", {})
        model, notes = prepared(model, feeds, kind)
        refuse_draws(model)
        if options.form in _WHOLE:
            reason = why_kept(model)
            if reason is not None and options.form == "whole":
                raise TargetError(title, reason, "Compile it with --form host.")
            if options.form == "auto":
                reason = reason or _why_not_whole(model, kind, options)
            if reason is None:
                try:
                    tell(f"{title}: the whole model")
                    legal = legalise(model, kind, None if options.form == "whole" else MOST_ROW_BYTES)
                    lowered, results = _whole(legal, folder, feeds, step, _MACHINES[kind], options.tune, tell)
                    reason = None if options.form == "whole" else _difference(model, feeds, results)
                    if reason is None:
                        return lowered
                except TargetError as error:
                    if options.form == "whole":
                        raise
                    reason = error.what
                (folder / _LIBRARY).unlink(missing_ok=True)
            notes.append(f"not {_MACHINES[kind]}: {reason}")
        return hosted(model, folder, feeds, Plan(step, order, tell, tuple(notes), options.tune))

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
        step = Step(worker, {"processor": wanted}, options.limits)
        return _Compiled(folder, manifest, step)

    def blame(self, model: ir.Model, feeds: Mapping[str, Array], options: Options, rtol: float | None) -> str | None:
        """The first value that differs; see ``Target``."""
        kind = options.build or _installed()
        try:
            found = blame(model, feeds, _worker(kind, options), rtol=rtol, seconds=options.limits.seconds)
        except TargetError as error:
            return f"where is not known: {error}"
        return found or "no body of a host program differs by itself, so rounding errors may have grown on the way"


class _Compiled(Artifact):
    """A whole model, or a host program with its bodies."""

    def __init__(self, folder: Path, manifest: Manifest, step: Step) -> None:
        super().__init__(folder, manifest)
        self._step = step

    def _run(self, feeds: Mapping[str, Array], limits: Limits) -> dict[str, Any]:
        step = Step(self._step.worker, self._step.options, limits)
        if "library" in self.manifest.program:
            results = _run_whole(self.folder, feeds, step)
            return dict(zip(self.manifest.outputs, results, strict=True))
        results, self.compiled_on_use = run_hosted(self.folder, self.manifest.program, feeds, step)
        return results


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


def _why_not_whole(model: ir.Model, kind: str, options: Options) -> str | None:
    """Why a model is better not compiled as one, before it is tried."""
    if options.profile is not None and any(map(is_branch, model.graph.all_nodes())):
        return "the profile says which branches to compile first, and which on first use"
    loops = [node for node in model.graph if is_loop(node)]
    if kind == "relax":
        return next(filter(None, map(why_not_whole, loops)), None)
    return next(filter(None, map(_why_not_machine, filter(is_loop, model.graph.all_nodes()))), None)


def _why_not_machine(node: ir.Node) -> str | None:
    """Why a loop is better not left to Relay's virtual machine, which copies all rows to stack another."""
    site = loop_site(node)
    trips = trip_count(site)
    if trips.bound is not None and trips.bound > LONG and site.outputs:
        return f"{label(node)} stacks values in {trips.bound:,} iterations"
    if site.outputs and not trips.positive:  # Relay's has the shape [0, 1] then, whatever the rows would be
        return f"{label(node)} stacks values, and may run no iteration"
    return None


def _whole(
    model: ir.Model,
    folder: Path,
    feeds: Mapping[str, Array],
    step: Step,
    form: str,
    seconds: float | None,
    tell: Tell,
) -> tuple[Lowered, list[Array]]:
    """What was made of the whole model, tuned for ``seconds``, and what it gives for the sample inputs."""
    found: Outcome | None = None
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as temporary:
        path = Path(temporary) / "model.onnx"
        save(model, path)
        shapes = {name: list(feed.shape) for name, feed in feeds.items()}
        arguments = {"model": str(path), "library": str(folder / _LIBRARY), "shapes": shapes}
        step.call("compile_model", arguments)
        if seconds is not None:
            given = tuple(feeds.values())
            body = Tunable("the whole model", path, folder / _LIBRARY, tuple(feeds), signature_of(given), 1, given)
            in_loops = step.worker.kind == "relax" and any(map(is_loop, model.graph))
            found = tune([] if in_loops else [body], seconds, step, tell)
    results = _run_whole(folder, feeds, step)
    if found is None:
        return Lowered(form, {"library": _LIBRARY}), results
    program = {"library": _LIBRARY, "tuning": dataclasses.asdict(found)}
    return Lowered(form, program, (found.note(),), lasting=found.complete), results


def _difference(model: ir.Model, feeds: Mapping[str, Array], results: Sequence[Array]) -> str | None:
    """In what the results of the whole model are not those of ONNX Runtime; None where they are."""
    session = Session(model)
    difference = first_difference(dict(zip(session.outputs, results, strict=True)), session.run(feeds))
    return None if difference is None else f"output '{difference.output}' differs from ONNX Runtime: {difference.what}"


def _run_whole(folder: Path, feeds: Mapping[str, Array], step: Step) -> list[Array]:
    arrays = {str(index): feed for index, feed in enumerate(feeds.values())}
    results = step.call("run_library", {"library": str(folder / _LIBRARY)}, arrays)[1]
    return [results[str(index)] for index in range(len(results))]
