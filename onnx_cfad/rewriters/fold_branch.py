"""Puts the live branch of an If with a known predicate in place of the If."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.release import release


class FoldConstantBranchPass(ir.passes.InPlacePass):
    """Replaces an If whose predicate is known by the nodes of the branch that runs, at every depth.

    Given ``y = If (p) <then: t = Mul (x, x), else: e = Det (x)>`` with p true, the result is ``y = Mul (x, x)``.

    Args:
        constants: Values known beforehand (from shapes, say) besides the constants of the model.
    """

    def __init__(self, constants: Mapping[ir.Value, np.ndarray]) -> None:
        super().__init__()
        self._constants = constants

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds outer branches first, then what is inside the live ones."""
        self._namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, self._graph(model.graph))

    def _graph(self, graph: ir.Graph) -> bool:
        changed = False
        taken: set[str] | None = None
        pending = list(graph)
        while pending:
            node = pending.pop(0)
            chosen = self._chosen(node)
            if chosen is None:
                for subgraph in subgraphs_of(node):
                    changed |= self._graph(subgraph)
                continue
            taken = names_of(graph) if taken is None else taken
            pending = [*inline_branch(node, chosen, taken, self._namer), *pending]
            changed = True
        return changed

    def _chosen(self, node: ir.Node) -> ir.Graph | None:
        if not is_branch(node):
            return None
        site = branch_site(node)
        known = self._constants.get(site.predicate)
        tensor = ir.convenience.get_const_tensor(site.predicate)
        if known is None and tensor is not None and not site.predicate.is_graph_input():
            known = tensor.numpy()
        if known is None:
            return None
        return site.then_branch if bool(known.reshape(-1)[0]) else site.else_branch


def names_of(graph: ir.Graph) -> set[str]:
    """The names of the values and nodes of one scope."""
    values = (*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs))
    return {*(value.name or "" for value in values), *(node.name or "" for node in graph)}


def _keep_apart(nodes: list[ir.Node], initializers: list[ir.Value], taken: set[str], namer: Namer) -> None:
    """Renames what comes into a scope that has the name already, and enters the rest into ``taken``."""
    for entry in (*initializers, *nodes, *(output for node in nodes for output in node.outputs)):
        if entry.name and entry.name in taken:
            entry.name = namer.fresh(entry.name)
        taken.add(entry.name or "")


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a branch is made of, taken out of it: nodes in order, initializers, and results."""

    nodes: list[ir.Node]
    initializers: list[ir.Value]
    results: list[ir.Value]


def take_apart(branch: ir.Graph) -> Parts:
    """Empties ``branch`` and gives what was in it."""
    results = list(branch.outputs)
    branch.outputs.clear()
    nodes = list(branch)
    branch.remove(nodes)
    initializers = list(branch.initializers.values())
    branch.initializers.clear()
    return Parts(nodes, initializers, results)


def inline_branch(node: ir.Node, branch: ir.Graph, taken: set[str], namer: Namer) -> list[ir.Node]:
    """Puts ``branch`` in the place of the If ``node``; gives its nodes.

    Args:
        node: The If.
        branch: One of its branches.
        taken: Names in the scope of the If.
        namer: For names that the scope has already.
    """
    graph = node.graph
    assert graph is not None
    namer.read()
    parts = take_apart(branch)
    nodes, initializers, results = parts.nodes, parts.initializers, parts.results
    _keep_apart(nodes, initializers, taken, namer)
    for initializer in initializers:
        graph.initializers.add(initializer)
    replaced: list[ir.Value] = []
    for result in results:
        unusable = result in replaced or result.producer() is None or result.producer() not in nodes
        if unusable:
            copy = ir.Node("", "Identity", [result])
            copy.outputs[0].type, copy.outputs[0].shape = result.type, result.shape
            nodes.append(copy)
            replaced.append(copy.outputs[0])
        else:
            replaced.append(result)
    readers = [usage.node for output in node.outputs for usage in output.uses() if usage.node.op_type == "Range"]
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, replaced)
    release(node)
    for reader in readers:
        _give_scalars(reader, namer)
    return nodes


def _give_scalars(reader: ir.Node, namer: Namer) -> None:
    """A Range that got vectors of one element through the If, unseen by the runtime, gets scalars."""
    graph = reader.graph
    assert graph is not None
    for index, value in enumerate(reader.inputs):
        if value is None or (value.shape is not None and value.shape.rank() == 0):
            continue
        empty = ir.Node("", "Constant", [], [ir.AttrInt64s("value_ints", [])], name=namer.fresh("scalar_shape"))
        flat = ir.Node("", "Reshape", [value, empty.outputs[0]], name=namer.fresh("scalar"))
        empty.outputs[0].name, flat.outputs[0].name = namer.fresh("scalar_shape.out"), namer.fresh("scalar.out")
        empty.outputs[0].type, flat.outputs[0].type = ir.TensorType(ir.DataType.INT64), value.type
        empty.outputs[0].shape, flat.outputs[0].shape = ir.Shape([0]), ir.Shape([])
        graph.insert_before(reader, [empty, flat])
        reader.replace_input_with(index, flat.outputs[0])
