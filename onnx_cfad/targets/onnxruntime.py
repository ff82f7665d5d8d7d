"""The reference body runner: straight-line bodies in ONNX Runtime, each on one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.errors import TargetError
from onnx_cfad.ports import Feeds
from onnx_cfad.runtime import Session
from onnx_cfad.targets.tvm.hostprog import HostProgramError, Machine
from onnx_cfad.targets.tvm.partition import Partition


class OnnxRuntimeBody:
    """A straight-line body as a callable, whose session is made on its first call.

    Args:
        name: Its name, for messages.
        model: The body.
        threads: Threads inside an operator; None for what ONNX Runtime chooses.
    """

    def __init__(self, name: str, model: ir.Model, *, threads: int | None = None) -> None:
        self.name = name
        self._model = model
        self._threads = threads
        self._inputs = [value.name or "" for value in model.graph.inputs]
        self._session: Session | None = None

    @property
    def ready(self) -> bool:
        """Whether its session has been made."""
        return self._session is not None

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs, in order.

        Raises:
            TargetError: ONNX Runtime refuses the body or cannot run it.
        """
        if self._session is None:
            self._session = Session(self._model, threads=self._threads)
        return self._session.run_unchecked(dict(zip(self._inputs, values, strict=True)))


def onnxruntime_bodies(bodies: Mapping[str, ir.Model], *, threads: int | None = None) -> dict[str, OnnxRuntimeBody]:
    """A callable for each body."""
    return {name: OnnxRuntimeBody(name, model, threads=threads) for name, model in bodies.items()}


def run_partition(parts: Partition, feeds: Feeds, *, threads: int | None = None) -> dict[str, Any]:
    """The outputs of a partitioned model by name, its bodies computed by ONNX Runtime.

    Raises:
        TargetError: The host program cannot go on, or ONNX Runtime refuses a body or cannot run it.
    """
    try:
        return Machine(parts.program, onnxruntime_bodies(parts.bodies, threads=threads)).run(feeds)
    except HostProgramError as error:
        raise TargetError("host program", str(error)) from error
