"""Which loops become one compiled function each, and the model of such a function with all shapes that are known.

The rest stays with the host program: what a loop decides while it runs (its end, a shape, a random draw) and what has
no place in a flat buffer (sequences, strings).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import LoopSite, branch_site, is_branch, is_loop, label, loop_site, subgraphs_of
from onnx_cfad.graph.trips import constant_of, goes_on
from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import legalise_operators

_MOST_NODES = 1000  # of a function, so that it is compiled in seconds
_DTYPES = frozenset(
    (
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.UINT8),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
    )
)


def with_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]] | None = None) -> ir.Model:
    """A copy of ``model`` in normal form, legalised for Relax, with all shapes that follow from those of its inputs.

    Args:
        model: The model.
        shapes: Shapes of inputs where they are known better than the model says.
    """
    model = normalise(model.clone())
    for value in model.graph.inputs:
        shape = (shapes or {}).get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
    legalise_operators(model, "relax")
    infer_types(model)
    return model


def whole(node: ir.Node) -> bool:
    """Whether the Loop or Scan ``node``, of a model with shapes, can be one function as far as the model shows."""
    return why_not_whole(node) is None


def why_not_whole(node: ir.Node) -> str | None:
    """Why ``node`` stays with the host program; None where it can be one function.

    What the importer of Relax refuses shows only when the function is compiled.
    """
    if not is_loop(node):
        return f"{label(node)} is no loop: the host takes a branch, and compiles it when it is first taken"
    nodes = [node, *(inner for graph in subgraphs_of(node) for inner in graph.all_nodes())]
    if len(nodes) > _MOST_NODES:
        return f"{label(node)} has {len(nodes):,} nodes, more than {_MOST_NODES:,}"
    for inner in nodes:
        reason = _why_not(inner)
        if reason is not None:
            return reason
    return None


def _why_not(node: ir.Node) -> str | None:
    if node.domain not in ("", "ai.onnx"):
        return f"{label(node)} is of the domain {node.domain}"
    if not subgraphs_of(node) and not is_pure(node):
        return f"{label(node)} draws random numbers"
    for value in (*node.inputs, *node.outputs):
        if value is not None and not isinstance(value.type, ir.TensorType):
            return f"{label(node)}: '{value.name}' is no tensor"
        if value is not None and value.dtype not in _DTYPES:
            return f"{label(node)}: '{value.name}' is {value.dtype}"
    if is_branch(node):
        sides = branch_site(node).branches
        for k, value in enumerate(node.outputs):
            if not _is_known(value) or any(side.outputs[k].shape != value.shape for side in sides):
                return f"{label(node)}: the shape of '{value.name}' depends on a branch"
    return _why_not_loop(loop_site(node)) if is_loop(node) else None


def _why_not_loop(site: LoopSite) -> str | None:
    where = label(site.node)
    if not site.is_scan:
        if site.limit is None:
            return f"{where} has no trip limit"
        if not goes_on(site):
            return f"{where} computes the condition that ends it"
        start = constant_of(site.start) if site.start is not None else np.array(True)
        if start is None or not bool(start.reshape(-1)[0]):
            return f"{where} computes its initial condition"
    for value in (*(c.initial for c in site.carries), *(s.source for s in site.inputs)):
        if not _is_known(value):
            return f"{where}: the shape of '{value.name}' is not known"
    for carry in site.carries:
        if not _is_known(carry.exit) or carry.exit.shape != carry.entry.shape:
            return f"{where}: the carry '{carry.entry.name}' may change its shape"
    return None


def _is_known(value: ir.Value) -> bool:
    """Whether every extent of a value is a number or a symbol."""
    return value.shape is not None and all(isinstance(d, int) or d.value is not None for d in value.shape)
