"""Writes what a transformation added with fewer nodes: constants, sums and factors need none of their own."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.drop_expands import DropExpandsPass
from onnx_cfad.rewriters.lift_constants import LiftConstantsPass
from onnx_cfad.rewriters.scale_products import ScaleProductsPass
from onnx_cfad.rewriters.sum_rows import SumRowsPass
from onnx_cfad.rewriters.turn_products import TurnProductsPass


def write_with_fewer_nodes(model: ir.Model, kept: Collection[ir.Node | ir.Value], namer: Namer) -> None:
    """Rewrites ``model`` in place.

    Args:
        model: What a transformation made.
        kept: Nodes and constants of the original, which stay as they are.
        namer: For the names of constants.
    """
    nodes = nodes_of(model.graph)  # what one pass makes is nothing that a later one looks for
    passes = LiftConstantsPass(kept, nodes), DropExpandsPass(kept, nodes), SumRowsPass(namer, kept)
    for rewrite in (*passes, ScaleProductsPass(kept, nodes), TurnProductsPass(kept, nodes)):
        rewrite(model)
