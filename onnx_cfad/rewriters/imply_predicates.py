"""Replaces predicates that the branch they stand in decides: inside the then-branch of p, p is true."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.alike import constant_key, operation_key
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer

Key = tuple[object, ...]
Facts = dict[Key, bool]

_SAME = frozenset(("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"))  # of one boolean
_DEEP = 6  # operators that a predicate is looked through
_MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual"}


class ImplyPredicatesPass(ir.passes.InPlacePass):
    """Puts constants where an outer branch has decided a boolean already, at every depth.

    Given ``If (p) <then: If (q) <...>>`` where q is p, ``Not (p)``, one side of a conjunction p, or the same comparison
    again, q becomes a constant; ``FoldConstantBranchPass`` then removes the inner If. Nothing is concluded that NaN
    would refute: that ``x > 0`` is false does not make ``x <= 0`` true.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits every graph once, with what its enclosing branches tell."""
        self._namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, self._graph(model.graph, {}))

    def _graph(self, graph: ir.Graph, facts: Facts) -> bool:
        changed = False
        for node in list(graph):
            changed |= bool(facts) and self._decide(node, graph, facts)
            if is_branch(node):
                site = branch_site(node)
                for branch, holds in ((site.then_branch, True), (site.else_branch, False)):
                    if not _reads_boolean(branch):
                        continue
                    told = dict(_consequences(site.predicate, holds, _DEEP))
                    changed |= self._graph(branch, {**facts, **told})
            else:
                for subgraph in subgraphs_of(node):
                    changed |= self._graph(subgraph, facts)
        return changed

    def _decide(self, node: ir.Node, graph: ir.Graph, facts: Facts) -> bool:
        """Puts constants in the place of decided inputs of ``node``."""
        changed = False
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype != ir.DataType.BOOL or constant_key(value) is not None:
                continue
            shape = value.shape if value.shape is not None else ir.Shape([]) if is_branch(node) else None
            if shape is None or any(d != 1 for d in shape.dims):
                continue
            known = _known(value, facts, _DEEP)
            if known is not None:
                node.replace_input_with(index, self._constant(graph, known, [1] * shape.rank()))
                changed = True
        return changed

    def _constant(self, graph: ir.Graph, truth: bool, shape: list[int]) -> ir.Value:
        name = self._namer.fresh("const")
        tensor = ir.Tensor(np.full(shape, truth), name=name)
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(shape), const_value=tensor)
        graph.initializers.add(value)
        return value


def _reads_boolean(branch: ir.Graph) -> bool:
    """Whether a node of ``branch``, at any depth, reads a boolean: where none does, nothing can be decided."""
    inputs = (value for node in nodes_of(branch) for value in node.inputs if value is not None)
    return any(value.dtype == ir.DataType.BOOL for value in inputs)


def _consequences(value: ir.Value, holds: bool, depth: int) -> Iterator[tuple[Key, bool]]:
    """What is known where the boolean ``value`` is ``holds``."""
    yield _key(value, depth), holds
    node = value.producer()
    if node is None or depth == 0:
        return
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type == "Not" or (node.op_type in _SAME and inputs and inputs[0].dtype == ir.DataType.BOOL):
        yield from _consequences(inputs[0], holds != (node.op_type == "Not"), depth - 1)
    elif (node.op_type == "And" and holds) or (node.op_type == "Or" and not holds):
        for operand in inputs:
            yield from _consequences(operand, holds, depth - 1)
    elif len(inputs) == 2:
        for op_type, pair, truth in _comparisons(node, holds):
            yield _comparison_key(op_type, (), [inputs[k] for k in pair], depth), truth


def _comparisons(node: ir.Node, holds: bool) -> list[tuple[str, tuple[int, int], bool]]:
    """Other comparisons of the same two numbers that are decided: operator, order of the operands, truth."""
    op_type = _MIRRORED.get(node.op_type, node.op_type)
    a, b = (1, 0) if node.op_type in _MIRRORED else (0, 1)
    if op_type == "Greater" and holds:
        never = [("Greater", (b, a)), ("GreaterOrEqual", (b, a)), ("Equal", (a, b)), ("Equal", (b, a))]
        return [("GreaterOrEqual", (a, b), True), *((name, pair, False) for name, pair in never)]
    if op_type == "GreaterOrEqual":
        return [("Greater", (b, a), False)] if holds else [("Greater", (a, b), False)]
    if op_type == "Equal" and holds:
        return [("Greater", (a, b), False), ("Greater", (b, a), False)]
    return []


def _known(value: ir.Value, facts: Facts, depth: int) -> bool | None:
    """Whether ``value`` is decided by ``facts``, and how."""
    key = _key(value, depth)
    if key in facts:
        return facts[key]
    node = value.producer()
    if node is None or depth == 0:
        return None
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type == "Not" or (node.op_type in _SAME and inputs and inputs[0].dtype == ir.DataType.BOOL):
        inner = _known(inputs[0], facts, depth - 1)
        return None if inner is None else inner != (node.op_type == "Not")
    if node.op_type in ("And", "Or"):
        absorbing = node.op_type == "Or"
        known = [_known(v, facts, depth - 1) for v in inputs]
        return absorbing if absorbing in known else None if None in known else not absorbing
    return None


def _key(value: ir.Value, depth: int) -> Key:
    """What a boolean is computed from: equal keys, equal values."""
    constant = constant_key(value)
    if constant is not None:
        return ("constant", *constant)
    node = value.producer()
    if node is None or depth == 0 or subgraphs_of(node) or not is_pure(node) or len(node.outputs) > 1:
        return ("value", id(value))
    inputs = [v for v in node.inputs if v is not None]
    if len(inputs) != len(node.inputs):
        return ("value", id(value))
    return _comparison_key(node.op_type, operation_key(node), inputs, depth)


def _comparison_key(op_type: str, operation: Key, inputs: list[ir.Value], depth: int) -> Key:
    keys = [_key(v, depth - 1) for v in inputs]
    if op_type in _MIRRORED:
        op_type, keys = _MIRRORED[op_type], keys[::-1]
    compares = op_type in ("Greater", "GreaterOrEqual", "Equal")
    return (op_type, *keys) if compares else (operation, *keys)
