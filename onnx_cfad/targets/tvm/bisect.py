"""Which value goes wrong first: both runners side by side, body by body of the host program, then node by node.

Every body gets what ONNX Runtime has computed so far, so that an error is seen where it is made and not where it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.regions import label
from onnx_cfad.ports import Feeds
from onnx_cfad.saving import save
from onnx_cfad.targets.comparison import first_difference
from onnx_cfad.targets.onnxruntime import OnnxRuntimeBody, onnxruntime_bodies
from onnx_cfad.targets.tvm.hostprog import Body, HostProgramError, Machine
from onnx_cfad.targets.tvm.partition import Partition, partition
from onnx_cfad.targets.tvm.signatures import Signature, digest, signature_of
from onnx_cfad.targets.tvm.specialise import meet, specialised
from onnx_cfad.targets.tvm.worker import Worker

_MOST_CALLS = 64
"""Calls of a body that are compared: an error that no shape explains shows in the first iterations, or is rounding."""


def blame(
    model: ir.Model, feeds: Feeds, worker: Worker, *, rtol: float | None = None, seconds: float = 600.0
) -> str | None:
    """Where a build of TVM first gives another value than ONNX Runtime, in words.

    Args:
        model: The model.
        feeds: Its inputs.
        worker: Runs the build.
        rtol: The tolerance; default: by element type.
        seconds: What one step in the worker may take.

    Returns:
        The body, the node and the value; None where no body by itself differs by more than the tolerance, so that it
        is rounding that adds up.

    Raises:
        TargetError: The model cannot be run, or a body is refused.
    """
    parts = partition(model)
    met, _ = meet(parts, feeds)
    with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as folder:
        side = _Side(worker, Path(folder), rtol, seconds)
        guarded = {name: record.guarded for name, record in met.items()}
        try:
            Machine(parts.program, side.by_side(parts, guarded)).run(feeds)
        except _Found as found:
            return str(found)
        except HostProgramError as error:
            raise TargetError("host program", str(error)) from error
    return None


class _Found(Exception):
    """The first difference; its text says where."""


class _Side:
    """Runs bodies in the worker beside ONNX Runtime."""

    def __init__(self, worker: Worker, folder: Path, rtol: float | None, seconds: float) -> None:
        self._worker, self._folder, self._rtol, self._seconds = worker, folder, rtol, seconds

    def by_side(self, parts: Partition, guarded: dict[str, tuple[int, ...]]) -> dict[str, Body]:
        """Bodies that give what ONNX Runtime gives, until the worker gives something else."""
        references = onnxruntime_bodies(parts.bodies, threads=1)
        calls = dict.fromkeys(parts.bodies, 0)

        def compared(name: str) -> Body:
            def call(values: Sequence[Any]) -> Sequence[Any]:
                results = references[name](values)
                calls[name] += 1
                if calls[name] <= _MOST_CALLS:
                    arrays = [np.asarray(value) for value in values]
                    signature = signature_of(arrays, guarded.get(name, ()))
                    made = specialised(parts.bodies[name], signature, self._worker.kind)
                    found = self._run(made, signature, arrays, name)
                    names = [output.name or "" for output in made.graph.outputs]
                    if self._differ(names, found, results) is not None:
                        raise _Found(self._node(made, signature, arrays, f"body '{name}', call {calls[name]}"))
                return results

            return call

        return {name: compared(name) for name in parts.bodies}

    def _run(
        self, model: ir.Model, signature: Signature, arrays: Sequence[np.ndarray[Any, Any]], what: str
    ) -> list[np.ndarray[Any, Any]]:
        stem = digest((*signature, (what, (), None)))
        path, library = self._folder / f"{stem}.onnx", self._folder / f"{stem}.so"
        if not library.exists():
            save(model, path)
            shapes = {value.name: list(array.shape) for value, array in zip(model.graph.inputs, arrays, strict=True)}
            arguments = {"model": str(path), "library": str(library), "shapes": shapes}
            self._worker.call("compile_model", arguments, timeout_s=self._seconds)
        given = {str(index): np.asarray(array, order="C") for index, array in enumerate(arrays)}
        _, results = self._worker.call("run_library", {"library": str(library)}, given, timeout_s=self._seconds)
        return [results[str(index)] for index in range(len(results))]

    def _differ(self, names: Sequence[str], found: Sequence[Any], expected: Sequence[Any]) -> str | None:
        """The first value that differs, and in which way."""
        pairs = zip(names, found, expected, strict=True)
        for name, result, reference in pairs:
            difference = first_difference({name: result}, {name: reference}, self._rtol)
            if difference is not None:
                return f"'{name}': {difference.what}"
        return None

    def _node(self, model: ir.Model, signature: Signature, arrays: Sequence[np.ndarray[Any, Any]], where: str) -> str:
        """The first node of a body whose value differs, the body run with all of its values as outputs."""
        model = model.clone()
        nodes = [node for node in model.graph if node.op_type != "Constant"]
        made = {output: node for node in nodes for output in node.outputs if output.name}
        model.graph.outputs[:] = list(made)
        try:
            expected = OnnxRuntimeBody(where, model, threads=1)(list(arrays))
            found = self._run(model, signature, arrays, f"{where}, every value")
        except TargetError as error:
            return f"{where} ({error.what})"
        for output, node, result, reference in zip(made, made.values(), found, expected, strict=True):
            difference = self._differ([output.name or ""], [result], [reference])
            if difference is not None:
                return f"{where}, {label(node)} gives the first value that differs, {difference}"
        return f"{where}, which differs only where its operators are fused"
