"""Dimensions and shapes: what is certainly equal, and small constructions."""

from __future__ import annotations

import onnx_ir as ir

Dim = int | ir.SymbolicDim


def symbols_of(dim: Dim) -> frozenset[str]:
    """The symbols in a dimension."""
    return _NONE if isinstance(dim, int) or dim.value is None else frozenset(dim.free_symbols())


_NONE: frozenset[str] = frozenset()


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def with_axis(shape: ir.Shape, axis: int, dim: Dim) -> ir.Shape:
    """``shape`` with ``dim`` inserted at ``axis`` of the result."""
    dims = list(shape.dims)
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, dim)
    return ir.Shape(dims)


def copied(shape: ir.Shape | None) -> ir.Shape | None:
    """A copy of ``shape``."""
    return None if shape is None else shape.copy()


def with_numbers(shape: ir.Shape | None) -> ir.Shape | None:
    """``shape`` with dimensions such as the expression ``12`` as numbers."""
    if shape is None or all(isinstance(d, int) or not (d.value or "").isdecimal() for d in shape.dims):
        return shape
    return ir.Shape(
        [int(str(d.value)) if isinstance(d, ir.SymbolicDim) and (d.value or "").isdecimal() else d for d in shape.dims]
    )
