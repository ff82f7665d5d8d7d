"""Symbolic dimensions under names that can stand in a formula; the author's names come back in the end.

ONNX allows any text as the name of a dimension. Exporters write ``30_dim_0`` or ``/Loop_dim_0``, which shape inference
would read as expressions, and a negative number for a dimension that they do not know, as ONNX Runtime reads it.

The TorchScript exporter invents names such as ``Looph_dim_0`` for the dimensions of outputs, and gives outputs of
different sizes the same ones. ONNX Runtime plans memory by equal names, so that seeds must not repeat them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.walk import graphs_of

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INVENTED = re.compile(r".*_dim_[0-9]+")
_KEY = "onnx_cfad.dimension_names"


def plain_dimension_names(model: ir.Model) -> None:
    """Gives every dimension a plain name, the same for the same text; ``author_dimension_names`` undoes it."""
    _tell_claims_apart(model)
    odd = [value for value in _values(model) if value.shape is not None and not all(map(_is_plain, value.shape.dims))]
    if not odd:
        return
    taken = _taken(model)
    renamed: dict[str, str] = {}
    for value in odd:
        assert value.shape is not None
        value.shape = ir.Shape([_plain(d, renamed, taken) for d in value.shape.dims])
    if renamed:
        model.meta[_KEY] = {plain: author for author, plain in renamed.items()}


def author_dimension_names(model: ir.Model) -> None:
    """Gives dimensions the names that the author wrote."""
    names: dict[str, str] = model.meta.get(_KEY, {})
    if not names:
        return
    for value in _values(model):
        if any(d.value in names for d in _symbolic(value)):
            assert value.shape is not None
            dims = [d if isinstance(d, int) or d.value not in names else names[str(d.value)] for d in value.shape.dims]
            value.shape = ir.Shape(dims)


def _taken(model: ir.Model) -> set[str]:
    return {str(d.value) for value in _values(model) for d in _symbolic(value)}


def _tell_claims_apart(model: ir.Model) -> None:
    """A name that was invented for dimensions of outputs stands for one of them; the others get names of their own."""
    claims = [str(d.value) for value in model.graph.outputs for d in _symbolic(value)]
    if len(set(claims)) == len(claims) or not any(map(_INVENTED.fullmatch, claims)):
        return
    taken = _taken(model)
    seen = {d.value for value in model.graph.inputs for d in _symbolic(value)}
    promised = frozenset(seen)
    for value in dict.fromkeys(model.graph.outputs):
        if value.shape is None:
            continue
        dims: list[int | ir.SymbolicDim | str] = list(value.shape.dims)
        for axis, dim in enumerate(value.shape.dims):
            if isinstance(dim, int) or dim.value is None or dim.value in promised or not _INVENTED.fullmatch(dim.value):
                continue
            if dim.value in seen:
                dims[axis] = _fresh(_stem(dim.value), taken)
            seen.add(dim.value)
        value.shape = ir.Shape(dims)


def _plain(dim: int | ir.SymbolicDim, renamed: dict[str, str], taken: set[str]) -> int | ir.SymbolicDim | str | None:
    if _is_plain(dim):
        return dim
    if isinstance(dim, int) or not dim.value:
        return None
    if dim.value not in renamed:
        renamed[dim.value] = _fresh(_stem(dim.value), taken)
    return renamed[dim.value]


def _stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name if _PLAIN.fullmatch(name) else f"dim_{name}")[:64]


def _fresh(stem: str, taken: set[str]) -> str:
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def _is_plain(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    return dim.value is None or _PLAIN.fullmatch(dim.value) is not None


def _symbolic(value: ir.Value) -> list[ir.SymbolicDim]:
    return [] if value.shape is None else [d for d in value.shape.dims if isinstance(d, ir.SymbolicDim)]


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs_of(model.graph):
        yield from graph.inputs
        yield from graph.outputs
        for node in graph:
            yield from node.outputs
