"""Removes what nothing reads: nodes, and outputs and carries of control-flow nodes, at every depth."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import LoopSite, captured_by, is_branch, is_loop, loop_site
from onnx_cfad.graph.walk import subgraphs_of
from onnx_cfad.rewriters.release import release


class PruneDeadValuesPass(ir.passes.InPlacePass):
    """Removes dead nodes, dead outputs of If, Loop and Scan, and loop carries that only feed themselves.

    ONNX Runtime keeps a stacked output that nobody reads (5.6 times the run time measured for one). Works on the main
    graph and all subgraphs. Graph inputs and outputs of the model stay, and so do the nodes in ``keep``.

    Args:
        keep: Nodes of the main graph to leave alone although nothing reads them.
    """

    def __init__(self, keep: frozenset[ir.Node] = frozenset()) -> None:
        super().__init__()
        self._keep = keep

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Prunes until nothing changes."""
        modified = False
        while _prune(model.graph, self._keep):
            modified = True
        return ir.passes.PassResult(model, modified)


def _prune(graph: ir.Graph, keep: frozenset[ir.Node]) -> bool:
    changed = False
    for node in reversed(list(graph)):
        if node not in keep and not any(_is_read(output) for output in node.outputs):
            graph.remove(node, safe=True)
            release(node)
            changed = True
            continue
        if is_branch(node):
            changed |= _prune_branch_outputs(node)
        elif is_loop(node):
            changed |= _prune_loop(node) or _prune_slices(node)
        for subgraph in subgraphs_of(node):
            changed |= _prune(subgraph, keep)
    for name in [name for name, value in graph.initializers.items() if not _is_read(value)]:
        if name.startswith(("const", "replay/")):
            del graph.initializers[name]
    return changed


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _prune_branch_outputs(node: ir.Node) -> bool:
    dead = [k for k, output in enumerate(node.outputs) if not _is_read(output)]
    if not dead or len(dead) == len(node.outputs):
        return False
    for graph in subgraphs_of(node):
        for k in reversed(dead):
            graph.outputs.pop(k)
    _rebuild(node, dead, [], dict(node.attributes))
    return True


def drop_carries(site: LoopSite, carries: list[int]) -> None:
    """Removes ``carries`` of a loop, by their positions; nothing may read their last values or need their entries."""
    _drop(site, carries, [])


def _prune_loop(node: ir.Node) -> bool:
    site = loop_site(node)
    dead_carries, count = _dead_carries(site), len(site.carries)
    dead_outputs = [count + k for k, o in enumerate(site.outputs) if not _is_read(o.stacked)]
    dead = len(dead_carries) + len(dead_outputs)
    if not dead or dead == len(node.outputs):
        return False
    _drop(site, dead_carries, dead_outputs)
    return True


def _drop(site: LoopSite, dead_carries: list[int], dead_outputs: list[int]) -> None:
    """Removes carries and stacked outputs, by the positions of their outputs."""
    offset, dead = 0 if site.is_scan else 1, [*dead_carries, *dead_outputs]
    for k in reversed(dead):
        site.body.outputs.pop(k + offset)
    if dead_carries:
        _prune(site.body, frozenset())
    for k in reversed(dead_carries):
        site.body.inputs.pop(k + offset * 2)
    attributes = _scan_attributes(site.node, dead_outputs, len(site.carries))
    _rebuild(site.node, dead, [k + offset * 2 for k in dead_carries], attributes)


def _prune_slices(node: ir.Node) -> bool:
    """Removes sliced inputs of a Scan that its body does not read; one stays, since it sets the trip count."""
    site = loop_site(node)
    dead = [k for k, x in enumerate(site.inputs) if not _is_read(x.slice)]
    if len(dead) == len(site.inputs):
        dead = dead[1:]
    if not dead:
        return False
    count, attributes = len(site.carries), dict(node.attributes)
    attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(site.inputs) - len(dead))
    for name in ("scan_input_axes", "scan_input_directions"):
        if name in attributes:
            kept = [v for k, v in enumerate(attributes[name].as_ints()) if k not in dead]
            attributes[name] = ir.AttrInt64s(name, kept)
    for k in reversed(dead):
        site.body.inputs.pop(count + k)
    _rebuild(node, [], [count + k for k in dead], attributes)
    return True


def _dead_carries(site: LoopSite) -> list[int]:
    """The carries whose last value nobody reads, and that no live value of an iteration depends on."""
    dead = [k for k, carry in enumerate(site.carries) if not _is_read(carry.final)]
    while dead:
        exits = [site.carries[k].exit for k in dead]
        roots = list(site.body.outputs)
        for exit_ in exits:
            roots.remove(exit_)
        stacks = {o.element for o in site.outputs if not _is_read(o.stacked)}
        needed = _needed(site.body, {v for v in roots if v not in stacks or roots.count(v) > 1})
        kept = [k for k in dead if site.carries[k].entry not in needed]
        if kept == dead:
            break
        dead = kept
    return dead


def _needed(graph: ir.Graph, roots: set[ir.Value]) -> set[ir.Value]:
    """What ``roots`` and the random draws of ``graph`` depend on: a draw counts as a reader."""
    needed = set(roots)
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs) or not is_pure(node):
            needed.update(v for v in (*node.inputs, *captured_by(node)) if v is not None)
    return needed


def _scan_attributes(node: ir.Node, dead: list[int], count: int) -> dict[str, ir.Attr]:
    attributes = dict(node.attributes)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in attributes:
            kept = [v for k, v in enumerate(attributes[name].as_ints()) if k + count not in dead]
            if kept:
                attributes[name] = ir.AttrInt64s(name, kept)
            else:
                del attributes[name]
    return attributes


def _rebuild(node: ir.Node, dead_outputs: list[int], dead_inputs: list[int], attributes: dict[str, ir.Attr]) -> None:
    """Replaces ``node`` by one without the dead outputs and inputs, under the same names."""
    outputs = [output for k, output in enumerate(node.outputs) if k not in dead_outputs]
    new = ir.Node(
        node.domain,
        node.op_type,
        [value for k, value in enumerate(node.inputs) if k not in dead_inputs],
        list(attributes.values()),
        num_outputs=len(outputs),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], outputs, list(new.outputs))
