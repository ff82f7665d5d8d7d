"""The TIR function that a model with loops becomes: its symbols, parameters and room. Runs in a worker's child."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_tvm import analyzer, tirx, tvm, tvm_ffi
from onnx_cfad.targets.tvm.loop_views import Array, View, flat, flat_buffer, product, rewritten

_ON_STACK = 256  # elements


@dataclasses.dataclass
class Function:
    """A function that is being written.

    Attributes:
        opset: Version of the model's operators.
        symbols: Extents by the model's name for them: numbers, or variables that the caller gives.
        parameters: Constant arrays that the caller gives, with their buffers.
        allocations: Small buffers of its own.
        workspace: Large ones, with their sizes, which the caller gives: TVM would put them on the stack.
        spellings: Extents that are no numbers, by the names that they have in straight-line models.
    """

    opset: int
    symbols: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    parameters: list[tuple[Array, Any]] = dataclasses.field(default_factory=list[tuple[Array, Any]])
    allocations: list[Any] = dataclasses.field(default_factory=list[Any])
    workspace: list[tuple[Any, Any]] = dataclasses.field(default_factory=list[tuple[Any, Any]])
    spellings: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def extent(self, dim: int | str) -> Any:
        """A dimension as a number or an expression.

        Raises:
            Refused: A symbol that the caller does not give.
        """
        if isinstance(dim, int):
            return dim
        if dim not in self.symbols:
            raise Refused(f"the extent {dim} follows from no input")
        return self.symbols[dim]

    def extents(self, dims: Sequence[int | str] | None) -> tuple[Any, ...] | None:
        """A shape; None where an extent is not known."""
        if dims is None or any(isinstance(d, str) and d not in self.symbols for d in dims):
            return None
        return tuple(self.extent(d) for d in dims)

    def spelled(self, extent: Any) -> int | str:
        """An extent as a dimension of a straight-line model."""
        if isinstance(extent, int):
            return extent
        extent = analyzer().simplify(extent)
        if isinstance(extent, tirx.IntImm):
            return int(extent)
        name = next((n for n, known in self.spellings.items() if tvm_ffi.structural_equal(known, extent)), None)
        if name is None:
            name = f"e{len(self.spellings)}"
            self.spellings[name] = extent
        return name

    def read(self, extent: Any) -> Any:
        """The opposite of ``spelled``, for an expression of such dimensions."""
        if isinstance(extent, int):
            return extent
        found = rewritten(extent, tvm.ir.Var, lambda v: self.spellings.get(v.name, v))
        found = analyzer().simplify(found)
        return int(found) if isinstance(found, tirx.IntImm) else found

    def buffer(self, size: Any, dtype: str, name: str) -> Any:
        """A flat buffer for intermediate values."""
        made = flat_buffer(size, dtype, f"{_plain(name)}_{len(self.allocations) + len(self.workspace)}")
        if isinstance(size, int) and size <= _ON_STACK:
            self.allocations.append(made)
        else:
            self.workspace.append((size, made))
        return made

    def space(self, shape: Sequence[Any], dtype: str, name: str) -> View:
        """Room for a tensor."""
        return flat(self.buffer(product(shape), dtype, name), shape)

    def constant(self, value: Array) -> View:
        """A constant array, as a parameter."""
        for known, buffer in self.parameters:
            if known.dtype == value.dtype and known.shape == value.shape and known.tobytes() == value.tobytes():
                return flat(buffer, value.shape)
        buffer = flat_buffer(value.size, np.dtype(value.dtype).name, f"constant_{len(self.parameters)}")
        self.parameters.append((value, buffer))
        return flat(buffer, value.shape)


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "value"
