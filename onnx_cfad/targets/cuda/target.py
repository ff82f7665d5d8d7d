"""The target ``cuda``: CUDA C by Relax, compiled by nvcc where it is installed, launched by CuPy where a GPU is.

With Relay the whole model becomes kernels that nothing here launches.

Straight-line bodies become kernels; a host program on the CPU drives them. An If whose branches may both run is
predicated first, so that nothing waits for its predicate. The kernels have been compiled, and never been run on a GPU.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.site_marks import marked
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import legalise_operators
from onnx_cfad.rewriters.predicate_branch import PredicateBranchPass
from onnx_cfad.saving import save
from onnx_cfad.targets.base import Array, Artifact, Limits, Lowered, Options, Target, Tell
from onnx_cfad.targets.cuda import nvcc
from onnx_cfad.targets.cuda.device import cupy, file_for
from onnx_cfad.targets.cuda.instructions import decisions, decisions_in_machine_code
from onnx_cfad.targets.cuda.kernel_body import KernelBody
from onnx_cfad.targets.cuda.lowering import lower_bodies
from onnx_cfad.targets.manifest import Manifest
from onnx_cfad.targets.onnxruntime import OnnxRuntimeBody
from onnx_cfad.targets.tvm import environments
from onnx_cfad.targets.tvm.hostprog import HostProgram, HostProgramError, Machine
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.prepared import prepared
from onnx_cfad.targets.tvm.specialise import meet
from onnx_cfad.targets.tvm.worker import Worker, shared_worker

_SOURCE, _PROGRAM, _PLANS, _CONSTANTS, _BODIES = (
    "kernels.cu",
    "program.json",
    "launches.json",
    "constants.npz",
    "bodies",
)


class Cuda(Target):
    """Kernels for NVIDIA's GPUs."""

    name = "cuda"

    def why_not_run(self) -> str | None:
        """Why its artifacts are not run here; see ``Target``."""
        try:
            cupy()
        except TargetError as error:
            return error.what
        return None

    def stamp(self, options: Options) -> dict[str, Any]:
        """The versions of TVM and nvcc, and the architectures; see ``Target``."""
        for name, given, default in (("form", options.form, "auto"), ("processor", options.processor, "native")):
            if given != default:
                raise TargetError(f"{name} '{given}'", "is for the target llvm alone", f"Leave --{name} out.")
        for name, given in (("profile", options.profile), ("tune", options.tune)):
            if given is not None:
                raise TargetError(name, "is for the target llvm alone", f"Leave --{name} out.")
        worker = _worker(options)
        versions = dict(worker.call("versions")[0])
        compiler = nvcc.find()
        return {
            "build": worker.kind,
            "versions": {key: versions[key] for key in sorted(versions) if key not in ("peak_bytes", "processor")},
            "nvcc": nvcc.version(compiler) if compiler else "absent",
            "architectures": list(nvcc.ARCHITECTURES),
            "processor": ", ".join(nvcc.ARCHITECTURES),
        }

    def lower(self, model: ir.Model, folder: Path, feeds: Mapping[str, Array], options: Options, tell: Tell) -> Lowered:
        """Compiles ``model``; see ``Target``."""
        model, stays = prepared(model, feeds, options.build or "relax")
        model, notes = predicated(model)
        notes += stays
        if options.build == "relay":
            return _by_relay(model, folder, feeds, options, tell, notes)
        parts = partition(model)
        tell("a run that shows what the bodies meet")
        met, _ = meet(parts, feeds)
        worker = _worker(options)

        def ask(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
            limits = options.limits
            return worker.call(name, arguments, timeout_s=limits.seconds, memory_bytes=limits.memory_bytes)

        tell("TVM Relax: kernels")
        kernels = lower_bodies(parts, met, nvcc.ARCHITECTURES[0], ask)
        stems = {name: f"body{index}" for index, name in enumerate(parts.bodies)}
        (folder / _BODIES).mkdir()
        for name, body in parts.bodies.items():
            save(body, folder / _BODIES / f"{stems[name]}.onnx")
        (folder / _PROGRAM).write_text(parts.program.to_json(), encoding="utf-8")
        arrays: dict[str, Any] = kernels.constants
        np.savez(folder / _CONSTANTS, **arrays)
        plans = {"bodies": kernels.bodies, "guarded": kernels.guarded}
        (folder / _PLANS).write_text(json.dumps(plans, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        notes += [f"{name} stays on the CPU: {reason}" for name, reason in kernels.hosted.items()]
        counts = _compiled(kernels.source(), folder, tell, notes)
        form = f"{len(kernels.kernels)} kernels for {len(kernels.bodies)} of {len(stems)} bodies, and a host program"
        return Lowered(form, {"stems": stems, "decisions": counts}, tuple(notes))

    def open(self, folder: Path, manifest: Manifest, options: Options) -> Artifact:  # noqa: ARG002
        """The artifact in ``folder``; see ``Target``."""
        return KernelProgram(folder, manifest)


class KernelProgram(Artifact):
    """Kernels and the host program that launches them; CuPy and a GPU are looked for by the first run."""

    def _run(self, feeds: Mapping[str, Array], limits: Limits) -> dict[str, Any]:  # noqa: ARG002
        if "stems" not in self.manifest.program:
            raise TargetError(str(self.folder), "it holds kernels of Relay, and no program", "Compile it by Relax.")
        return self.run_on(cupy(), feeds)

    def run_on(self, xp: Any, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """The outputs by name, computed with ``xp``: CuPy, or what has its functions.

        Raises:
            TargetError: No kernels are there for the device, or the program cannot go on.
        """
        plans = json.loads((self.folder / _PLANS).read_text(encoding="utf-8"))
        program = HostProgram.from_json((self.folder / _PROGRAM).read_text(encoding="utf-8"))
        with np.load(self.folder / _CONSTANTS) as stored:
            constants = {name: xp.asarray(stored[name]) for name in stored.files}
        kernels = self._kernels(xp) if plans["bodies"] else None
        bodies: dict[str, Any] = {}
        for name, stem in self.manifest.program["stems"].items():
            hosted = _hosted(name, self.folder / _BODIES / f"{stem}.onnx", xp)
            bodies[name] = hosted
            if name in plans["bodies"] and kernels is not None:
                guarded = plans["guarded"][name]
                bodies[name] = KernelBody(plans["bodies"][name], guarded, kernels.get_function, constants, hosted, xp)
        try:
            results = Machine(program, bodies, xp).run({name: xp.asarray(feed) for name, feed in feeds.items()})
        except HostProgramError as error:
            raise TargetError("host program", str(error)) from error
        return {name: _on_host(value, xp) for name, value in results.items()}

    def _kernels(self, xp: Any) -> Any:
        name = file_for(xp.cuda.Device().compute_capability, self.manifest.stamp["architectures"])
        if not (self.folder / name).exists():
            raise TargetError(str(self.folder), "it was compiled without nvcc", "Compile it where nvcc is installed.")
        return xp.RawModule(path=str(self.folder / name))


def predicated(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """``model`` in normal form with every If predicated whose branches may both run, and what was done.

    What a gradient makes of one If of its primal is predicated together or not at all: where the branches of the
    primal's If return other shapes, those of the reverse one each take the cotangent of another shape.
    """
    model = normalise(model.clone())
    infer_types(model)
    branches = [node for node in model.graph.all_nodes() if is_branch(node)]
    kept = [node for node in branches if why_not_masked(branch_site(node)) is not None]
    of_kept = {marked(node) for node in kept} - {None}
    chosen = [node for node in branches if node not in kept and marked(node) not in of_kept]
    PredicateBranchPass(chosen)(model)
    return model, [f"{len(chosen)} of {len(branches)} branches are predicated"] if branches else []


def _worker(options: Options) -> Worker:
    kind = options.build or "relax"
    return shared_worker(kind, environments.interpreter(kind), threads=options.threads)


def _by_relay(
    model: ir.Model, folder: Path, feeds: Mapping[str, Array], options: Options, tell: Tell, notes: list[str]
) -> Lowered:
    """Kernels of the whole model, without launches: Relay's virtual machine, which launches them, is another target."""
    tell("TVM Relay: kernels")
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as temporary:
        path = Path(temporary) / "model.onnx"
        save(legalise_operators(model, "relay"), path)
        arguments = {
            "model": str(path),
            "shapes": {name: list(feed.shape) for name, feed in feeds.items()},
            "arch": nvcc.ARCHITECTURES[0],
            "folder": str(environments.generator_folder()),
        }
        limits = options.limits
        answer, _ = _worker(options).call(
            "relay_cuda_source", arguments, timeout_s=limits.seconds, memory_bytes=limits.memory_bytes
        )
    notes += [
        f"Relay's generator was called by {answer['by']}",
        "kernels alone: there is no program that launches them",
    ]
    counts = _compiled(str(answer["source"]), folder, tell, notes)
    return Lowered("kernels of Relay", {"decisions": counts}, tuple(notes))


def _compiled(source: str, folder: Path, tell: Tell, notes: list[str]) -> dict[str, Any]:
    """Writes the source and what nvcc makes of it; the decisions of each kernel by architecture."""
    (folder / _SOURCE).write_text(source, encoding="utf-8")
    compiler = nvcc.find()
    if not source or compiler is None:
        notes += ["nvcc is not installed: CUDA C alone"] if source else []
        return {}
    counts: dict[str, Any] = {}
    for architecture in nvcc.ARCHITECTURES:
        tell(f"nvcc: {architecture}")
        for form in ("ptx", "cubin"):
            made = nvcc.compiled(source, architecture, form, compiler)
            (folder / f"kernels.{architecture}.{form}").write_bytes(made)
            found = decisions(made.decode()) if form == "ptx" else decisions_in_machine_code(made)
            if found is not None:
                counts[f"{architecture} {form}"] = {name: dataclasses.asdict(count) for name, count in found.items()}
    return counts


def _hosted(name: str, path: Path, xp: Any) -> Any:
    """A body on the CPU, between arrays of the device."""
    body = OnnxRuntimeBody(name, ir.load(path), threads=1)

    def call(values: Sequence[Any]) -> Sequence[Any]:
        return [xp.asarray(result) for result in body([_on_host(value, xp) for value in values])]

    return call


def _on_host(value: Any, xp: Any) -> Any:
    """A value with its arrays on the host."""
    if isinstance(value, list):
        return [_on_host(item, xp) for item in value]
    return xp.asnumpy(value) if isinstance(value, xp.ndarray) else value
