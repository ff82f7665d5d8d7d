"""Takes out of an If what both of its branches do."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.alike import alike_graphs, constant_key, operation_key
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.fold_branch import inline_branch, names_of


class MergeBranchesPass(ir.passes.InPlacePass):
    """Moves common work in front of an If, and removes an If whose branches are the same, at every depth.

    Given ``y = If (p) <then: s = Sin (x); a = Mul (s, w), else: t = Sin (x); b = Neg (t)>``, the result is
    ``s = Sin (x)`` followed by ``y = If (p) <then: a = Mul (s, w), else: b = Neg (s)>``.

    Random draws stay where they are: one draw is not two. What moves ran anyway, whichever branch was taken.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visits inner Ifs first, so that what they have in common can move on."""
        namer = Namer.on_demand(model)
        return ir.passes.PassResult(model, _graph(model.graph, namer))


def _graph(graph: ir.Graph, namer: Namer) -> bool:
    changed = False
    for node in list(graph):
        for subgraph in subgraphs_of(node):
            changed |= _graph(subgraph, namer)
        if is_branch(node):
            changed |= _merge(node, graph, namer) or _hoist(node, namer)
    return changed


def _merge(node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
    site = branch_site(node)
    if not all(map(is_pure, site.then_branch)) or not alike_graphs(*site.branches):
        return False
    inline_branch(node, site.then_branch, names_of(graph), namer)
    return True


def _hoist(node: ir.Node, namer: Namer) -> bool:
    """Moves nodes that both branches have, as long as there are some; whether there were."""
    site, moved = branch_site(node), False
    while True:
        others = _ready(site.else_branch)
        found = [(one, others[key]) for key, one in _ready(site.then_branch).items() if key in others]
        if not found:
            break
        for one, other in found:
            _move(one, other, node, namer)
        moved = True
    return moved


def _ready(branch: ir.Graph) -> dict[tuple[object, ...], ir.Node]:
    """The nodes that read nothing made in the branch, by what they do."""
    found: dict[tuple[object, ...], ir.Node] = {}
    for node in branch:
        if node.op_type in ("Identity", "Constant") or subgraphs_of(node) or not is_pure(node):
            continue
        keys = [_read(value, branch) for value in node.inputs]
        if all(key is not None for key in keys):
            found.setdefault((operation_key(node), *keys), node)
    return found


def _read(value: ir.Value | None, branch: ir.Graph) -> tuple[object, ...] | None:
    """What a node reads: an outer value, or a small constant; None for what the branch makes."""
    if value is None:
        return ("absent",)
    return ("outer", id(value)) if value.graph is not branch else constant_key(value)


def _move(one: ir.Node, other: ir.Node, node: ir.Node, namer: Namer) -> None:
    """Moves ``one`` in front of the If ``node``, with its constants, and has it stand for ``other`` too."""
    graph, branch, twin = node.graph, one.graph, other.graph
    assert graph is not None
    assert branch is not None
    assert twin is not None
    for value in one.inputs:
        if value is not None and value.graph is branch:
            _hand_on(branch, value, value, namer)
            _move_constant(value, node, graph)
    for old, new in zip(other.outputs, one.outputs, strict=True):
        _hand_on(branch, new, new, namer)
        _hand_on(twin, old, new, namer)
        old.replace_all_uses_with(new)
    branch.remove(one)
    graph.insert_before(node, one)
    twin.remove(other, safe=True)  # what it read must not seem to be read


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
