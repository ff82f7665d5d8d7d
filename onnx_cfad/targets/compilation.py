"""From a model to an artifact: sample inputs, the cache, the target, the check against ONNX Runtime, the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from platformdirs import user_cache_path

from onnx_cfad import weights
from onnx_cfad.errors import TargetError, ValidationError
from onnx_cfad.given import flag, name_of, number, path_of, whole
from onnx_cfad.links import followed
from onnx_cfad.model import Source, load
from onnx_cfad.numeric.made_up_seeds import make_up_inputs
from onnx_cfad.ports import Feeds, check_feeds, ports_of
from onnx_cfad.runtime import Session
from onnx_cfad.saving import fingerprint
from onnx_cfad.targets.base import Array, Artifact, Options, Target, Tell, plain_feeds
from onnx_cfad.targets.cache import Cache, key_of
from onnx_cfad.targets.comparison import errors_of, first_difference
from onnx_cfad.targets.known import target as target_named
from onnx_cfad.targets.manifest import NAME, InputEntry, Manifest, digests, read_manifest
from onnx_cfad.targets.rounding import rounding_notes
from onnx_cfad.targets.scratch import scratch_folder

_SEED = 0
_ATTEMPTS = 100


def artifact_cache() -> Cache:
    """The cache of compiled artifacts in the user's cache folder."""
    return Cache(user_cache_path("onnx-cfad", appauthor=False) / "artifacts")


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
    chosen, compiler, store = options or Options(), target_named(name_of("target", target)), cache or artifact_cache()
    _check(chosen, rtol)
    check = flag("check", check)
    final = None if output is None else _checked_output(path_of("output", output))
    source = load(model)
    job = _Job(compiler, chosen, source, Session(source), compiler.stamp(chosen), check, rtol, feeds is None, tell)
    samples = job.samples(feeds)
    if final is None:
        return job.temporary(samples, store)
    try:
        with scratch_folder(final) as temporary:
            job.fill(temporary, samples, store)
            _replace(final, temporary)
    except OSError as error:
        raise TargetError(str(final), f"cannot be written: {error.strerror or error}") from error
    return open_artifact(final, chosen)


def open_artifact(folder: str | os.PathLike[str], options: Options | None = None) -> Artifact:
    """The artifact in a folder that ``compile_model`` has written.

    Raises:
        TargetError: The folder holds none, the target is not there, or it was compiled for another processor.
    """
    manifest = read_manifest(Path(folder))
    try:
        return target_named(manifest.target).open(Path(folder), manifest, options or Options())
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # what it says is not what a target writes
        what = f"it cannot be read: {type(error).__name__}: {error}"
        raise TargetError(str(Path(folder) / NAME), what, "Compile the model again.") from error


@dataclasses.dataclass(frozen=True)
class _Job:
    """One compilation; see ``compile_model``."""

    compiler: Target
    options: Options
    model: ir.Model
    session: Session
    stamp: dict[str, Any]
    check: bool
    rtol: float | None
    made_up: bool
    tell: Tell

    def samples(self, feeds: Feeds | None) -> dict[str, Array]:
        """Sample inputs, in the order of the model's inputs that have no default."""
        required = [port for port in ports_of(self.model) if port.required]
        if feeds is None:
            self.tell("sample inputs")
            feeds = make_up_inputs(self.model, self.session.run, _SEED)
        given = plain_feeds(feeds)
        check_feeds(required, given)
        return {port.name: given[port.name] for port in required}

    def temporary(self, samples: Mapping[str, Array], cache: Cache) -> Artifact:
        """The artifact in a folder that goes when it does, at the latest with this process."""
        folder = Path(tempfile.mkdtemp(prefix="onnx-cfad-"))
        try:
            self.fill(folder, samples, cache)
            artifact = open_artifact(folder, self.options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(artifact, shutil.rmtree, folder, ignore_errors=True)
        return artifact

    def fill(self, folder: Path, samples: Mapping[str, Array], cache: Cache) -> None:
        """Puts the artifact into an empty folder, from the cache where it is there."""
        key = self._key(samples)
        if cache.fetch(key, folder):
            return
        start = time.perf_counter()
        # A model that is given away is not the one that is run beside it.
        lowered = self.compiler.lower(self.model.clone(), folder, samples, self.options, self.tell)
        manifest = Manifest(
            target=self.compiler.name,
            form=lowered.form,
            model=fingerprint(self.model),
            stamp=self.stamp,
            inputs=tuple(InputEntry(name, feed.dtype.name, feed.shape) for name, feed in samples.items()),
            outputs=self.session.outputs,
            program=lowered.program,
            errors=None,
            files=digests(folder),
            notes=lowered.notes,
            seconds=round(time.perf_counter() - start, 3),
        )
        reason = self.compiler.why_not_run() if self.check else None
        if reason is not None:
            manifest = dataclasses.replace(manifest, notes=(*manifest.notes, f"compiled, not run: {reason}"))
        elif self.check:
            self.tell("comparing with ONNX Runtime")
            errors, notes = self._errors(self.compiler.open(folder, manifest, self.options), samples)
            manifest = dataclasses.replace(manifest, errors=errors, notes=(*manifest.notes, *notes))
        (folder / NAME).write_text(manifest.to_json(), encoding="utf-8")
        if lowered.lasting:
            cache.store(key, folder)

    def _errors(self, artifact: Artifact, samples: Mapping[str, Array]) -> tuple[dict[str, float], list[str]]:
        """The error of each output, none of which may be over the tolerance, and notes on those that only round."""
        results, reference = artifact.run(samples, limits=self.options.limits), self.session.run(samples)
        difference, notes = first_difference(results, reference, self.rtol), None
        if difference is not None and self.rtol is None:
            self.tell("comparing with float64")
            notes = rounding_notes(self.model, samples, results, reference)
        if difference is not None and notes is None:
            what = f"target {self.compiler.name} and ONNX Runtime differ on sample inputs: {difference.what}"
            self.tell("looking for the first value that differs")
            where = self.compiler.blame(self.model, samples, self.options, self.rtol)
            what += f"; {where}" if where else ""
            inputs = "real inputs (--inputs) instead of made-up ones, " if self.made_up else ""
            remedy = f"Give {inputs}a tolerance (--rtol), or leave the check out (--no-check)."
            raise ValidationError(f"output '{difference.output}'", what, remedy)
        return errors_of(results, reference), notes or []

    def _key(self, samples: Mapping[str, Array]) -> str:
        chosen = {**dataclasses.asdict(self.options), "limits": None}
        feeds = {name: (f.dtype.name, f.shape, _hash(f)) for name, f in samples.items()}
        return key_of(
            {
                "model": _content(self.model), "target": self.compiler.name, "stamp": self.stamp, "code": _code(),
                "check": self.check, "rtol": self.rtol, "options": chosen, "feeds": feeds,
            }
        )  # fmt: skip


def _check(options: Options, rtol: float | None) -> None:
    """Refuses what no compilation can go by."""
    for name in ("build", "form", "processor"):
        if getattr(options, name) is not None:
            name_of(name, getattr(options, name))
    if rtol is not None:
        number("rtol", rtol, below=1, remedy="Leave it out: it goes by type.")
    whole("threads", options.threads, 1)
    if options.tune is not None:
        number("tune", options.tune, remedy="It is in seconds.")
    number("timeout", options.limits.seconds, remedy="It is in seconds.")


def _checked_output(final: Path) -> Path:
    """Refuses a place that an artifact cannot be written to: a file, or a folder that holds something else."""
    if not final.parent.is_dir():
        raise TargetError(str(final), "the folder of the output does not exist", "Make it first.")
    if final.exists() and not final.is_dir():
        raise TargetError(str(final), "the output is a file", "Name a folder.")
    if final.is_dir() and any(final.iterdir()) and not (final / NAME).is_file():
        raise TargetError(str(final), "the output is a folder that holds something else", "Name another, or empty it.")
    try:
        return followed(final)
    except OSError as error:
        raise TargetError(str(final), f"cannot be written: {error.strerror}") from error


def _replace(final: Path, new: Path) -> None:
    """Puts ``new`` in the place of ``final``, again where another process has put something there meanwhile."""
    for _ in range(_ATTEMPTS):
        old = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
        try:
            with contextlib.suppress(FileNotFoundError):
                final.rename(old)
            new.rename(final)
        except BaseException as error:
            with contextlib.suppress(OSError):  # what was there stays, unless there is something newer
                old.rename(final)
            if not isinstance(error, OSError) or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        finally:
            shutil.rmtree(old, ignore_errors=True)
    raise TargetError(str(final), "other processes keep writing it", "Name another folder.")


def _content(model: ir.Model) -> str:
    """The hash of a model with all of its weights, those in other files too."""
    digest = hashlib.sha256(fingerprint(model).encode())
    for _, tensor in weights.external_slots(model):
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _hash(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@functools.cache
def _code() -> str:
    """The hash of this package: another release may compile otherwise."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
