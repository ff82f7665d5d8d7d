"""A body on a GPU: its buffers, and its launches in order, by CuPy or what has the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnx_cfad.targets.tvm.signatures import digest, signature_of

Kernel = Callable[..., None]
"""A kernel of ``cupy.RawModule``: called with a grid, a block and arguments."""


class KernelBody:
    """The callable of a body in a host program.

    Args:
        plans: Launches, buffers, inputs and outputs by digest of a signature.
        guarded: Inputs whose values are part of a signature.
        kernels: The compiled kernels by name.
        constants: Arrays on the device by name.
        otherwise: Computes the body on the CPU for inputs of another signature.
        xp: CuPy.
    """

    def __init__(
        self,
        plans: Mapping[str, Mapping[str, Any]],
        guarded: Sequence[int],
        kernels: Callable[[str], Kernel],
        constants: Mapping[str, Any],
        otherwise: Callable[[Sequence[Any]], Sequence[Any]],
        xp: Any,
    ) -> None:
        self._plans, self._guarded, self._kernels = plans, guarded, kernels
        self._constants, self._otherwise, self._xp = constants, otherwise, xp
        self.launches = 0

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs, in order."""
        plan = self._plans.get(
            digest(signature_of([self._looked_at(k, v) for k, v in enumerate(values)], self._guarded))
        )
        if plan is None:
            return self._otherwise(values)
        buffers = dict(
            zip(plan["inputs"], (self._xp.ascontiguousarray(self._xp.asarray(v)) for v in values), strict=True)
        )
        for name, buffer in plan["buffers"].items():
            if "constant" in buffer:
                buffers[name] = self._constants[buffer["constant"]]
            elif name not in buffers:
                buffers[name] = self._xp.empty(buffer["shape"], buffer["dtype"])
        for launch in plan["launches"]:
            arguments = tuple(buffers[name] for name in launch["arguments"])
            kernel = self._kernels(launch["kernel"])
            kernel(tuple(launch["grid"]), tuple(launch["block"]), arguments, shared_mem=launch["shared_bytes"])
            self.launches += 1
        return [buffers[name].reshape(plan["buffers"][name]["shape"]) for name in plan["outputs"]]

    def _looked_at(self, position: int, value: Any) -> Any:
        """What a signature needs of a value: its numbers on the host where they are guarded."""
        if position in self._guarded and hasattr(value, "get"):
            return value.get()
        return value if hasattr(value, "dtype") else np.asarray(value)
