"""Small integer and boolean values that constants and known shapes fix: exporters' shape arithmetic, computed ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir

from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.walk import nodes_of, subgraphs_of

_LIMIT = 64  # elements: shape arithmetic is short
_KINDS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


class ConstantFolder:
    """Knows the values that shapes and constants fix, and computes further ones node by node.

    Args:
        opsets: The model's opset imports.
        symbolic: Gives the elements of a value as far as shape inference tracks them, or None.
    """

    def __init__(
        self, opsets: dict[str, int], symbolic: Callable[[ir.Value], Sequence[int | ir.SymbolicDim] | None]
    ) -> None:
        self.known: dict[ir.Value, np.ndarray] = {}
        self._opsets = opsets
        self._symbolic = symbolic

    def of(self, value: ir.Value | None) -> np.ndarray | None:
        """The constant that ``value`` certainly holds; None where only the run knows."""
        if value is None:
            return None
        if value in self.known:
            return self.known[value]
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            return None if value.is_graph_input() or tensor.size > _LIMIT else tensor.numpy()
        elements = self._symbolic(value) if value.dtype == ir.DataType.INT64 and value.shape is not None else None
        if elements is None or value.shape is None or value.shape.rank() > 1:
            return None
        if not all(isinstance(e, int) for e in elements):
            return None
        return np.asarray(elements, dtype=np.int64).reshape(() if value.shape.rank() == 0 else (-1,))

    def forget(self, graph: ir.Graph) -> None:
        """Drops what was found inside ``graph``, whose inputs are about to change."""
        for node in nodes_of(graph):
            for output in node.outputs:
                self.known.pop(output, None)

    def fold(self, node: ir.Node) -> Iterator[tuple[ir.Value, np.ndarray]]:
        """The outputs of ``node`` that its known inputs fix, with their values."""
        if node.domain not in ("", "ai.onnx") or subgraphs_of(node) or not node.inputs or not is_pure(node):
            return
        if any(output.dtype not in _KINDS for output in node.outputs):
            return
        inputs = [self.of(value) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(inputs, node.inputs, strict=True)):
            return
        if _result_size(node.op_type, inputs) > _LIMIT:
            return
        for output, array in zip(node.outputs, evaluated(node, inputs, self._opsets), strict=False):
            if array.size <= _LIMIT:
                self.known[output] = array
                yield output, array


def evaluated(node: ir.Node, inputs: Sequence[np.ndarray | None], opsets: Mapping[str, int]) -> list[np.ndarray]:
    """The outputs of ``node`` for given inputs; none where they cannot be computed ahead (a Tile of 2**60, say)."""
    feeds = {v.name: a for v, a in zip(node.inputs, inputs, strict=True) if v is not None and v.name}
    graph = onnx.helper.make_graph(
        [ir.to_proto(node)],
        "constant",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(o.name or "", onnx.TypeProto()) for o in node.outputs],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        session = onnx.reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))
        return [np.asarray(x) for x in session.run(None, feeds)]
    except (ValueError, TypeError, IndexError, NotImplementedError, RuntimeError, MemoryError, OverflowError):
        return []


_UNBOUNDED = frozenset(("Resize", "CenterCropPad"))


def _result_size(op_type: str, inputs: Sequence[np.ndarray | None]) -> float:
    """How many elements an operator would make at most, before it is asked to: models are not trusted."""
    given = [array for array in inputs if array is not None]
    if op_type == "Range" and len(given) == 3:
        start, limit, delta = (float(array.reshape(-1)[0]) for array in given)
        return np.inf if delta == 0 else (limit - start) / delta
    if op_type == "ConstantOfShape" and given:
        return float(np.prod(given[0].astype(np.float64)))
    if op_type in {"Expand", "Tile", "OneHot"} and len(given) >= 2:
        return float(np.prod(given[1].astype(np.float64)) * max(given[0].size, 1))
    if op_type == "Pad" and len(given) >= 2:
        return float(np.prod(np.sum(np.abs(given[1].astype(np.float64))) + given[0].shape))
    return np.inf if op_type in _UNBOUNDED else 0
