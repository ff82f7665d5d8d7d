"""Moves in front of an If what both of its branches do: it is run anyway, whichever is taken.

Values are numbered: two nodes do the same where they have the same operator and attributes and read the same outer
values, equal small constants, or results of nodes that do the same. Cost is linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import onnx_ir as ir

from onnx_cfad.graph.alike import constant_key, operation_key
from onnx_cfad.graph.dims import same_dim
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import branch_site
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer


class HoistCommonWorkPass(ir.passes.InPlacePass):
    """Moves common work in front of the Ifs that are not among ``primal``, at every depth: those of a reverse pass.

    Given ``y = If (p) <then: t = Transpose (x); a = MatMul (t, w), else: s = Transpose (x); b = MatMul (s, v)>``, the
    result is ``t = Transpose (x)`` followed by the If over both products. What a branch itself returns stays there: it
    would return a copy.

    Args:
        primal: The nodes that are left alone.
    """

    def __init__(self, primal: Container[ir.Node]) -> None:
        super().__init__()
        self._primal = primal

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits inner Ifs first, so that what they have in common can move on."""
        branches = [node for node in nodes_of(model.graph) if node.op_type == "If" and node not in self._primal]
        namer = Namer.on_demand(model)
        moved = [hoist_common_work(node, namer, returned=False) for node in reversed(branches)]
        return ir.passes.PassResult(model, any(moved))


def hoist_common_work(node: ir.Node, namer: Namer, *, returned: bool = True) -> bool:
    """Moves what both branches of an If do in front of it, with its constants; whether there was something.

    Args:
        node: The If.
        namer: For new names.
        returned: Also what a branch returns, which then returns a copy.
    """
    site = branch_site(node)
    twins = _common(site.then_branch, site.else_branch, returned=returned)
    if not twins:
        return False
    graph = node.graph
    assert graph is not None
    for one, other in twins.items():
        for value in one.inputs:
            if value is not None and value.graph is site.then_branch and value.producer() not in twins:
                _hand_on(site.then_branch, value, value, namer)
                _move_constant(value, node, graph)
        for old, new in zip(other.outputs, one.outputs, strict=True):
            if returned:
                _hand_on(site.then_branch, new, new, namer)
                _hand_on(site.else_branch, old, new, namer)
            _keep_what_both_know(new, old)
            old.replace_all_uses_with(new)
    site.then_branch.remove(twins)
    graph.insert_before(node, twins)
    site.else_branch.remove(twins.values(), safe=True)
    return True


def _keep_what_both_know(value: ir.Value, twin: ir.Value) -> None:
    """Takes from the shape of ``value`` what holds in its own branch alone: there a residual may have fewer sizes."""
    if value.shape is None or twin.shape is None or value.shape.rank() != twin.shape.rank():
        value.shape = None
        return
    pairs = zip(value.shape.dims, twin.shape.dims, strict=True)
    value.shape = ir.Shape([one if same_dim(one, other) else None for one, other in pairs])


def _common(branch: ir.Graph, twin: ir.Graph, *, returned: bool) -> dict[ir.Node, ir.Node]:
    """The nodes of ``branch`` that have a twin, in order, each with it."""
    known: dict[object, list[ir.Node]] = {}  # by what they read: most read what no other does
    numbers: dict[ir.Value, object] = {}
    operators = {node.op_type for node in twin}
    held = set[ir.Value]() if returned else {*branch.outputs, *twin.outputs}
    for node in branch:
        key = _read_by(node, branch, numbers) if node.op_type in operators else None
        if key is None:
            continue
        alike = known.setdefault(key, [])
        if _alike(node, alike) is None:
            alike.append(node)
            numbers.update({output: (id(node), k) for k, output in enumerate(node.outputs)})
    twins: dict[ir.Node, ir.Node] = {}
    for node in twin if known else ():
        key = _read_by(node, twin, numbers)
        alike = known.get(key, []) if key is not None else []
        one = _alike(node, alike)
        if one is None or not held.isdisjoint((*one.outputs, *node.outputs)):
            continue
        if _may_leave(one) and _may_leave(node):
            alike.remove(one)
            twins[one] = node
            numbers.update({output: (id(one), k) for k, output in enumerate(node.outputs)})
    return {node: twins[node] for node in branch if node in twins} if twins else {}


def _read_by(node: ir.Node, branch: ir.Graph, numbers: dict[ir.Value, object]) -> tuple[object, ...] | None:
    """The operator of a node and what it reads; None where it reads what only this branch makes."""
    read: list[object] = [node.op_type]
    for value in node.inputs:
        number = value if value is None or value.graph is not branch else numbers.get(value) or _constant(value)
        if number is None and value is not None:
            return None
        read.append(number)
    return tuple(read)


def _alike(node: ir.Node, others: Sequence[ir.Node]) -> ir.Node | None:
    """The first of ``others``, which read the same, that does what ``node`` does."""
    if not others:
        return None
    key = operation_key(node)
    return next((other for other in others if operation_key(other) == key), None)


def _may_leave(node: ir.Node) -> bool:
    """Whether a node of a branch may be run whichever branch is taken."""
    return node.op_type not in ("Identity", "Constant") and not subgraphs_of(node) and is_pure(node)


def _constant(value: ir.Value) -> object:
    maker = value.producer()
    return constant_key(value) if maker is None or maker.op_type == "Constant" else None


def _hand_on(branch: ir.Graph, result: ir.Value, source: ir.Value, namer: Namer) -> None:
    """Puts a copy of ``source`` where ``branch`` returns ``result``: a branch returns nothing from outside."""
    for position, output in enumerate(list(branch.outputs)):
        if output is result:
            copy = ir.Node("", "Identity", [source], name=namer.fresh("merge/Identity"))
            copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{result.name}.copy"), result.type
            copy.outputs[0].shape = result.shape
            branch.append(copy)
            branch.outputs[position] = copy.outputs[0]


def _move_constant(value: ir.Value, node: ir.Node, graph: ir.Graph) -> None:
    maker, branch = value.producer(), value.graph
    assert branch is not None
    if maker is not None:
        branch.remove(maker)
        graph.insert_before(node, maker)
    else:
        branch.initializers.pop(value.name or "")
        graph.initializers.add(value)
