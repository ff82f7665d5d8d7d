"""Writes an If that is an `and`, an `or` or a `not` of Python as the boolean operator.

Exporters of TorchScript write ``a and b`` as an If that computes b only where a holds, also in the condition of a while
loop. As operators they cost less, and the conditions of loops can be read.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.maskable import why_not_run
from onnx_cfad.graph.regions import BranchSite, branch_site, is_branch
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.fold_branch import take_apart
from onnx_cfad.rewriters.release import release

_LARGEST = 16  # nodes: what is cheaper to run than to decide about
_HEAVY = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Resize", "Det"))


class BooleanBranchPass(ir.passes.InPlacePass):
    """Replaces an If with one boolean result, a constant on one side, by And, Or and Not, at every depth.

    Given ``y = If (p) <then: q = Less (k, n), else: f = Identity (false)>``, the result is ``q = Less (k, n)`` followed
    by ``y = And (p, q)``.

    The other side has to be small and pure, and must not fail where the If would not have run it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits inner Ifs first."""
        self._namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, self._graph(model.graph))

    def _graph(self, graph: ir.Graph) -> bool:
        changed = False
        for node in list(graph):
            for subgraph in subgraphs_of(node):
                changed |= self._graph(subgraph)
            if is_branch(node) and _is_boolean(branch_site(node)):
                changed |= self._replace(node, graph)
        return changed

    def _replace(self, node: ir.Node, graph: ir.Graph) -> bool:
        site = branch_site(node)
        first, second = (_truth(branch.outputs[0]) for branch in site.branches)
        if first is None and second is None:
            return False
        rest = None if first is not None and second is not None else site.branches[first is not None]
        if rest is not None and not _may_run(rest):
            return False
        if first is not None and first == second:
            return False  # a constant: nothing to decide, and merged elsewhere
        nodes: list[ir.Node] = []
        predicate = site.predicate
        if (first is False) or (first is None and second is True):
            predicate = self._operator("Not", [predicate], nodes)
        if rest is None:
            result = predicate if nodes else self._operator("Identity", [predicate], nodes)
        else:
            self._namer.read()
            part = take_apart(rest)
            for initializer in part.initializers:
                graph.initializers.add(initializer)
            nodes += part.nodes
            conjunction = (second is False) or (first is False)
            result = self._operator("And" if conjunction else "Or", [predicate, part.results[0]], nodes)
        ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, list(node.outputs), [result])
        release(node)
        return True

    def _operator(self, op_type: str, inputs: list[ir.Value], nodes: list[ir.Node]) -> ir.Value:
        node = ir.Node("", op_type, inputs, name=self._namer.fresh(f"boolean/{op_type}"))
        output = node.outputs[0]
        output.name, output.type, output.shape = (
            self._namer.fresh(f"boolean/{op_type}.out"),
            ir.TensorType(ir.DataType.BOOL),
            inputs[0].shape,
        )
        nodes.append(node)
        return output


def _is_boolean(site: BranchSite) -> bool:
    """Whether the If gives one boolean of the predicate's shape, which an operator can give too."""
    if len(site.node.outputs) != 1 or site.predicate.shape is None:
        return False
    results = [branch.outputs[0] for branch in site.branches]
    return all(v.dtype == ir.DataType.BOOL and v.shape == site.predicate.shape for v in results)


def _truth(value: ir.Value) -> bool | None:
    constant = constant_of(value)
    return None if constant is None else bool(constant.reshape(-1)[0])


def _may_run(branch: ir.Graph) -> bool:
    nodes = nodes_of(branch)
    if len(nodes) > _LARGEST or any(node.op_type in _HEAVY or subgraphs_of(node) for node in nodes):
        return False
    return all(why_not_run(node) is None for node in nodes)
