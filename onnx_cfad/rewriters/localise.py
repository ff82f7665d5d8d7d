"""Declares small weights inside the deep bodies that read them, where ONNX Runtime 1.32 packs them.

An initializer captured from two or more levels up is not packed for its kernel: 138 microseconds an iteration became
187 at depth 2 for a 512 x 512 product. A copy in the body's own graph restores the speed at the price of its bytes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer

_SMALLEST, _LARGEST = 1 << 10, 1 << 20  # bytes: below it does not matter, above the copies cost too much memory
_PACKED = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"))


class LocaliseWeightsPass(ir.passes.InPlacePass):
    """Copies a main-graph initializer into each subgraph at least two levels below that multiplies by it.

    Args:
        namer: For the copies' names.
        kept: Initializers to leave alone, such as those that the user differentiates by and may replace.
    """

    def __init__(self, namer: Namer, kept: Collection[ir.Value] = ()) -> None:
        super().__init__()
        self._namer = namer
        self._kept = set(kept)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every subgraph once."""
        changed = sum(self._visit(s, model.graph, 1) for node in model.graph for s in subgraphs_of(node)) > 0
        return ir.passes.PassResult(model, changed)

    def _visit(self, graph: ir.Graph, main: ir.Graph, depth: int) -> bool:
        changed = False
        copies: dict[ir.Value, ir.Value] = {}
        for node in graph:
            for subgraph in subgraphs_of(node):
                changed |= self._visit(subgraph, main, depth + 1)
            if depth < 2 or node.op_type not in _PACKED:
                continue
            for index, value in enumerate(node.inputs):
                if value is not None and self._is_weight(value, main):
                    node.replace_input_with(index, self._copy(value, copies, graph))
                    changed = True
        return changed

    def _is_weight(self, value: ir.Value, main: ir.Graph) -> bool:
        tensor = value.const_value
        if tensor is None or value.graph is not main or not value.is_initializer() or value.is_graph_input():
            return False
        return value not in self._kept and len(tensor.shape) >= 2 and _SMALLEST <= tensor.nbytes <= _LARGEST

    def _copy(self, value: ir.Value, copies: dict[ir.Value, ir.Value], graph: ir.Graph) -> ir.Value:
        if value not in copies:
            name = self._namer.fresh(f"{value.name}.local")
            copies[value] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
            graph.initializers.add(copies[value])
        return copies[value]
