"""The original model as the specification reads it, where ONNX Runtime computes something else.

What bodies and branches return under two names, or as they got it, ONNX Runtime 1.32 gives wrong values without an
error, and so it does for a transposed matrix times a vector. A Resize may get another size there than is specified. A
gradient model has copies there, the product the other way round, and the size of ONNX Runtime. Both are compared with
the original that has the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.model import Source
from onnx_cfad.names import Namer
from onnx_cfad.ports import Feeds, listed
from onnx_cfad.rewriters.round_resize import RoundResizePass
from onnx_cfad.rewriters.separate_outputs import SeparateOutputsPass
from onnx_cfad.rewriters.turn_vector_products import TurnVectorProductsPass, is_miscomputed
from onnx_cfad.runtime import Session


def as_specified(model: ir.Model) -> ir.Model:
    """``model``, or a copy of it in which outputs of bodies are values of their own, vectors first, sizes sure."""
    copy = model.clone()
    changed = SeparateOutputsPass(Namer.on_demand(copy))(copy).modified
    bodies = (copy.graph, *copy.functions.values())
    if any(is_miscomputed(node) for body in bodies for node in nodes_of(body)):
        ShapeInferencePass()(copy)
        changed |= TurnVectorProductsPass()(copy).modified
    if any(node.op_type == "Resize" for body in bodies for node in nodes_of(body)):
        infer_types(copy)
        changed |= RoundResizePass()(copy).modified
    return copy if changed else model


def miscomputed(source: Source, feeds: Feeds, specified: Mapping[str, Any]) -> tuple[str, ...]:
    """A remark where ONNX Runtime gives other outputs for ``source`` than are ``specified``."""
    found = Session(source, threads=1).run(feeds)
    wrong = [name for name, value in specified.items() if not _equal(found[name], value)]
    if not wrong:
        return ()
    cause = (
        "for a body or branch that returns its own input or one value twice, a transposed matrix times a vector, or a "
        "Resize whose size it rounds up"
    )
    remedy = "the original was run with copies of such values, the vector first, and a factor that gives that size"
    return (f"ONNX Runtime computes {listed(wrong)} of the original wrongly, {cause}: {remedy}",)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
