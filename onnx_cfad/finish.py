"""The last steps of a transformation: dead values out, shapes declared as far as they are certain."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.names import cotangent_name
from onnx_cfad.rewriters.prune import PruneDeadValuesPass

Declared = Mapping[str, ir.Shape | None]


def declare_shapes(model: ir.Model) -> Declared:
    """The shapes of the model's inputs and outputs as their author wrote them, by name."""
    values = (*model.graph.inputs, *model.graph.outputs)
    return {v.name or "": None if v.shape is None else v.shape.copy() for v in values}


def finish(model: ir.Model, primal: frozenset[ir.Node], declared: Declared) -> None:
    """Prunes ``model`` and settles its shapes; the ``primal`` nodes of the main graph stay."""
    PruneDeadValuesPass(primal)(model)
    author = _symbols_of(declared)
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in (*graph.inputs, *graph.outputs, *(o for node in graph for o in node.outputs)):
            value.shape = _settled(value.shape, author)
    interface = {**{cotangent_name(name): shape for name, shape in declared.items()}, **declared}
    for value in (*model.graph.inputs, *model.graph.outputs):
        shape = interface.get(value.name or "")
        if shape is not None:
            value.shape = shape


def _symbols_of(declared: Declared) -> set[str]:
    return {str(d.value) for s in declared.values() if s is not None for d in s.dims if isinstance(d, ir.SymbolicDim)}


def _settled(shape: ir.Shape | None, author: set[str]) -> ir.Shape | None:
    """``shape`` with numbers and the author's symbols; what inference invented is unknown to a reader."""
    if shape is None:
        return None
    return ir.Shape([d if isinstance(d, int) or d.value in author else None for d in shape.dims])
