"""A worker as a target uses it: with the options of the compiler and the limits of a step in every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_cfad.targets.base import Array, Limits
from onnx_cfad.targets.tvm.worker import Worker


class Step:
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
