"""Bodies for the inputs that they meet: a run with sample inputs finds them, and shape arithmetic becomes constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.shape_deciding import shape_deciding_inputs
from onnx_cfad.ports import Feeds
from onnx_cfad.rewriters.legalise import fold_known, legalise_operators
from onnx_cfad.saving import save
from onnx_cfad.targets.onnxruntime import onnxruntime_bodies
from onnx_cfad.targets.tvm.hostprog import Body, HostProgramError, Machine
from onnx_cfad.targets.tvm.partition import Partition
from onnx_cfad.targets.tvm.signatures import MOST_GUARDED, Signature, digest, signature_of


@dataclasses.dataclass
class Met:
    """What a body met in a run: its calls in all, and by signature.

    Attributes:
        guarded: The positions of its inputs whose values are part of the signature.
        counts: Calls by signature, for the first ``most`` of them.
        calls: Calls in all.
    """

    guarded: tuple[int, ...]
    counts: dict[Signature, int] = dataclasses.field(default_factory=dict[Signature, int])
    calls: int = 0


def meet(parts: Partition, feeds: Feeds, *, most: int = 16) -> tuple[dict[str, Met], dict[str, Any]]:
    """What each body meets in a run with ``feeds`` on ONNX Runtime, and the outputs of that run.

    Bodies that are not run, such as branches not taken, have no entry.

    Args:
        parts: The model.
        feeds: Its inputs.
        most: Signatures of a body that are told apart.

    Raises:
        TargetError: ONNX Runtime cannot run it.
    """
    met: dict[str, Met] = {}

    def watched(name: str, body: Body) -> Body:
        def call(values: Sequence[Any]) -> Sequence[Any]:
            if name not in met:
                met[name] = Met(_guarded(parts.bodies[name], [np.asarray(value) for value in values]))
            record = met[name]
            record.calls += 1
            signature = signature_of([np.asarray(value) for value in values], record.guarded)
            if signature in record.counts or len(record.counts) < most:
                record.counts[signature] = record.counts.get(signature, 0) + 1
            return body(values)

        return call

    bodies = onnxruntime_bodies(parts.bodies, threads=1)
    try:
        results = Machine(parts.program, {name: watched(name, body) for name, body in bodies.items()}).run(feeds)
    except HostProgramError as error:
        raise TargetError("host program", str(error)) from error
    return met, results


def _guarded(body: ir.Model, values: Sequence[np.ndarray[Any, Any]]) -> tuple[int, ...]:
    """The inputs whose values decide shapes inside a body that is given ``values``."""
    model = _fixed(body, signature_of(values))
    return tuple(k for k in shape_deciding_inputs(model.graph) if values[k].size <= MOST_GUARDED)


def declared(body: ir.Model) -> Signature | None:
    """The signature of a body that a run did not meet, where what is known of its inputs makes one."""
    found: list[tuple[str, tuple[int, ...], None]] = []
    for value in body.graph.inputs:
        if value.dtype is None or value.shape is None or not value.shape.is_static():
            return None
        found.append((value.dtype.numpy().name, tuple(int(d) for d in value.shape.numpy()), None))
    return None if shape_deciding_inputs(body.graph) else tuple(found)


def specialised(body: ir.Model, signature: Signature, target: str) -> ir.Model:
    """``body`` for inputs of exactly this signature, legalised for ``target``; its interface stays.

    It computes what ``body`` does for such inputs, and may compute something else for others.
    """
    return legalise_operators(_fixed(body, signature), target)


def _fixed(body: ir.Model, signature: Signature) -> ir.Model:
    """A copy of ``body`` whose inputs have the shapes of the signature and, where it has them, the values."""
    model = body.clone()
    first = next(iter(model.graph), None)
    for value, (_, shape, guarded) in zip(model.graph.inputs, signature, strict=True):
        value.shape = ir.Shape(shape)
        if guarded is None or value.dtype is None:
            continue
        array = np.array(guarded, dtype=value.dtype.numpy()).reshape(shape)
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(array))])
        constant.outputs[0].name, constant.outputs[0].type = f"{value.name}.guarded", value.type
        constant.outputs[0].shape = ir.Shape(shape)
        ir.convenience.replace_all_uses_with(value, constant.outputs[0])
        if first is not None:
            model.graph.insert_before(first, constant)
    fold_known(model)
    return model


def write_bodies(
    parts: Partition,
    signatures: Mapping[str, Iterable[Signature]],
    folder: Path,
    stems: Mapping[str, str],
    target: str,
) -> None:
    """Writes the bodies for a worker: ``STEM.onnx`` for any inputs, ``STEM-DIGEST.onnx`` for given ones.

    Args:
        parts: The model.
        signatures: Those that bodies are specialised for.
        folder: Where the files go.
        stems: The stem for each body.
        target: ``relay`` or ``relax``, which the bodies are legalised for.

    Raises:
        ModelError: A file cannot be written.
    """
    for name, body in parts.bodies.items():
        save(legalise_operators(body.clone(), target), folder / f"{stems[name]}.onnx")
        for signature in signatures.get(name, ()):
            save(specialised(body, signature, target), folder / f"{stems[name]}-{digest(signature)}.onnx")
