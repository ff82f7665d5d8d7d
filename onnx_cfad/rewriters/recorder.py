"""Notation for passes that write new nodes: ``op.Mul(a, b)`` records a node and gives its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.names import Namer


class Recorder:
    """Records nodes in order, with names that nothing else has.

    An operator is called with its inputs, in ONNX order, and its attributes by name; a Python number among the inputs
    becomes a constant of the type of the first input that is a value. The result is the output, or the list of outputs
    where ``_outputs`` asks for several.

    Args:
        namer: Gives the names.
        hint: What names begin with.
    """

    def __init__(self, namer: Namer, hint: str) -> None:
        self.nodes: list[ir.Node] = []
        self._namer, self._hint = namer, hint

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def record(*inputs: ir.Value | float | None, _outputs: int = 1, **attributes: Any) -> Any:
            values = [v if v is None or isinstance(v, ir.Value) else self._number(v, inputs) for v in inputs]
            made = self._node(op_type, values, attributes, _outputs)
            return made[0] if _outputs == 1 else made

        return record

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant; of the given element type, else of the array's."""
        tensor = ir.Tensor(np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy()))
        value = self._node("Constant", [], {"value": tensor}, 1)[0]
        value.type, value.shape = ir.TensorType(tensor.dtype), tensor.shape
        return value

    def inside(self) -> Recorder:
        """Records the nodes of a subgraph."""
        return Recorder(self._namer, self._hint)

    def entry(self, outer: ir.Value, hint: str) -> ir.Value:
        """An input of a subgraph, of the element type of ``outer``."""
        return ir.Value(name=self._namer.fresh(f"{self._hint}/{hint}"), type=outer.type)

    def variable(self, hint: str, dtype: ir.DataType, dims: Sequence[int] = ()) -> ir.Value:
        """An input of a subgraph."""
        return ir.Value(name=self._namer.fresh(f"{self._hint}/{hint}"), type=ir.TensorType(dtype), shape=ir.Shape(dims))

    def like(self, value: ir.Value) -> ir.Value:
        """An input of a subgraph, declared as ``value`` is."""
        return ir.Value(name=self._namer.fresh(f"{value.name}"), type=value.type, shape=value.shape)

    def put_first(self, graph: ir.Graph) -> None:
        """Puts what was recorded before all nodes of ``graph``."""
        first = next(iter(graph), None)
        if first is None:
            graph.extend(self.nodes)
        else:
            graph.insert_before(first, self.nodes)

    def replace(self, graph: ir.Graph, node: ir.Node, results: Sequence[ir.Value]) -> None:
        """Puts what was recorded in the place of ``node``; ``results`` are its outputs from now on."""
        pairs = [(old, new) for old, new in zip(node.outputs, results, strict=False) if old.name]  # "" is left out
        for old, new in pairs:
            new.type, new.shape = old.type, old.shape
        old_values, new_values = zip(*pairs, strict=True)
        ir.convenience.replace_nodes_and_values(graph, node, [node], self.nodes, old_values, new_values)

    def ints(self, *numbers: int) -> ir.Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def _number(self, number: float, inputs: Sequence[Any]) -> ir.Value:
        like = next(v for v in inputs if isinstance(v, ir.Value))
        assert like.dtype is not None, "the types of the model have been inferred"
        return self.constant(number, like.dtype)

    def _node(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any], outputs: int
    ) -> Sequence[ir.Value]:
        node = ir.Node(
            "",
            op_type,
            inputs,
            [*ir.convenience.convert_attributes({k: v for k, v in attributes.items() if v is not None})],
            num_outputs=outputs,
            name=self._namer.fresh(f"{self._hint}/{op_type}"),
        )
        like = _element_type(op_type, inputs, attributes)
        for output in node.outputs:
            output.name = self._namer.fresh(f"{self._hint}/{op_type}.out")
            output.type = None if like is None else ir.TensorType(like)
        self.nodes.append(node)
        return node.outputs


_INTEGERS = frozenset(("Shape", "Size"))
_FLAGS = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"))
_OF_THEIR_OWN = frozenset(("Loop", "Scan", "If"))


def _element_type(op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any]) -> ir.DataType | None:
    """The element type of a result, for numbers beside it, as far as the operator shows it."""
    if op_type in _INTEGERS:
        return ir.DataType.INT64
    if op_type in _FLAGS:
        return ir.DataType.BOOL
    if op_type == "Cast":
        return ir.DataType(attributes["to"])
    given = inputs[1:] if op_type == "Where" else inputs
    return None if op_type in _OF_THEIR_OWN else next((v.dtype for v in given if v is not None), None)
