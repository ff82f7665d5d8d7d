"""The control-flow sites of a graph: what enters a Loop, Scan or If, what leaves it, and a stable path for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnx_cfad.graph.walk import graphs_of, nodes_of, subgraphs_of


@dataclasses.dataclass(frozen=True)
class Carry:
    """A value handed from one iteration to the next: ``initial`` -> (``entry`` -> body -> ``exit``)* -> ``final``."""

    initial: ir.Value
    entry: ir.Value
    exit: ir.Value
    final: ir.Value


@dataclasses.dataclass(frozen=True)
class ScanInput:
    """A tensor read one slice an iteration: along ``axis``, from its end when ``reverse``."""

    source: ir.Value
    slice: ir.Value
    axis: int
    reverse: bool


@dataclasses.dataclass(frozen=True)
class ScanOutput:
    """A per-iteration result stacked along ``axis``, each in front of the others when ``reverse``."""

    element: ir.Value
    stacked: ir.Value
    axis: int
    reverse: bool


@dataclasses.dataclass(frozen=True)
class LoopSite:
    """A Loop or a Scan in one form; a Scan is a Loop with a known trip count and sliced inputs.

    Attributes:
        node: The Loop or Scan node.
        body: Its body graph.
        carries: Carried values.
        inputs: Sliced inputs (Scan only).
        outputs: Stacked outputs.
        index: Iteration number in the body (Loop only).
        predicate: The condition that enters the body (Loop only).
        proceed: The condition that the body computes for the next iteration (Loop only).
        limit: The trip limit M (Loop only, optional).
        start: The initial condition (Loop only, optional).
    """

    node: ir.Node
    body: ir.Graph
    carries: tuple[Carry, ...]
    inputs: tuple[ScanInput, ...]
    outputs: tuple[ScanOutput, ...]
    index: ir.Value | None = None
    predicate: ir.Value | None = None
    proceed: ir.Value | None = None
    limit: ir.Value | None = None
    start: ir.Value | None = None

    @property
    def is_scan(self) -> bool:
        """Whether the node is a Scan."""
        return self.index is None

    def rows(self, *, leading: bool = True) -> list[ir.Node]:
        """The body nodes ``Gather(x, i)`` that read row i of an outer tensor x of known rank in iteration i (Loop).

        With ``leading``, only those along the first axis.
        """
        found: list[ir.Node] = []
        for node in self.body:
            source = node.inputs[0] if node.op_type == "Gather" else None
            if source is None or node.inputs[1] is not self.index or source.graph is self.body or source.shape is None:
                continue
            if not leading or node.attributes.get_int("axis", 0) % source.shape.rank() == 0:
                found.append(node)
        return found if self.index is not None else []


@dataclasses.dataclass(frozen=True)
class BranchSite:
    """An If: its predicate and its two branches."""

    node: ir.Node
    predicate: ir.Value
    then_branch: ir.Graph
    else_branch: ir.Graph

    @property
    def branches(self) -> tuple[ir.Graph, ir.Graph]:
        """The then-branch and the else-branch."""
        return self.then_branch, self.else_branch


def handed_on(carry: Carry) -> bool:
    """Whether every iteration returns the carry as it came, copies of it included."""
    return copies_between(carry) is not None


def copies_between(carry: Carry) -> tuple[ir.Node, ...] | None:
    """The Identity nodes between entry and exit, the last one first; None where something else is between them."""
    value, found = carry.exit, list[ir.Node]()
    while value is not carry.entry:
        node = value.producer()
        if node is None or node.op_type != "Identity" or node.inputs[0] is None:
            return None
        found.append(node)
        value = node.inputs[0]
    return tuple(found)


def is_loop(node: ir.Node) -> bool:
    """Whether the node is a Loop or a Scan of the default domain."""
    return node.op_type in ("Loop", "Scan") and node.domain in ("", "ai.onnx")


def is_branch(node: ir.Node) -> bool:
    """Whether the node is an If of the default domain."""
    return node.op_type == "If" and node.domain in ("", "ai.onnx")


def loop_site(node: ir.Node) -> LoopSite:
    """The Loop or Scan ``node`` as it stands now (a later change of the node needs a new view)."""
    return _loop(node) if node.op_type == "Loop" else _scan(node)


def branch_site(node: ir.Node) -> BranchSite:
    """The If ``node`` as it stands now."""
    predicate = node.inputs[0]
    assert predicate is not None
    then_branch, else_branch = (node.attributes[key].as_graph() for key in ("then_branch", "else_branch"))
    return BranchSite(node, predicate, then_branch, else_branch)


def _loop(node: ir.Node) -> LoopSite:
    body = node.attributes["body"].as_graph()
    inputs = list(node.inputs) + [None] * (2 - len(node.inputs))
    count = len(body.inputs) - 2
    carries = [
        Carry(_present(inputs[2 + k]), body.inputs[2 + k], body.outputs[1 + k], node.outputs[k]) for k in range(count)
    ]
    outputs = [ScanOutput(body.outputs[1 + k], node.outputs[k], 0, False) for k in range(count, len(node.outputs))]
    return LoopSite(
        node, body, tuple(carries), (), tuple(outputs),
        body.inputs[0], body.inputs[1], body.outputs[0], inputs[0], inputs[1],
    )  # fmt: skip


def _scan(node: ir.Node) -> LoopSite:
    body = node.attributes["body"].as_graph()
    sliced = node.attributes["num_scan_inputs"].as_int()
    count = len(node.inputs) - sliced
    stacked = len(node.outputs) - count
    axes_in, back_in = _ints(node, "scan_input_axes", sliced), _ints(node, "scan_input_directions", sliced)
    axes_out, back_out = _ints(node, "scan_output_axes", stacked), _ints(node, "scan_output_directions", stacked)
    carries = [Carry(_present(node.inputs[k]), body.inputs[k], body.outputs[k], node.outputs[k]) for k in range(count)]
    inputs = [
        ScanInput(_present(node.inputs[count + k]), body.inputs[count + k], axes_in[k], bool(back_in[k]))
        for k in range(sliced)
    ]
    outputs = [
        ScanOutput(body.outputs[count + k], node.outputs[count + k], axes_out[k], bool(back_out[k]))
        for k in range(stacked)
    ]
    return LoopSite(node, body, tuple(carries), tuple(inputs), tuple(outputs))


def _ints(node: ir.Node, name: str, count: int) -> tuple[int, ...]:
    attribute = node.attributes.get(name)
    given = tuple(attribute.as_ints()) if attribute is not None else ()
    return given or (0,) * count


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None, "a carried or scanned input is never optional"
    return value


@dataclasses.dataclass(frozen=True)
class Region:
    """A graph of the control-flow tree: the main graph, a loop body or a branch."""

    path: str
    graph: ir.Graph
    sites: tuple[Site, ...]

    def walk(self) -> Iterator[Site]:
        """Every site below this region, outer before inner, in graph order."""
        for site in self.sites:
            yield site
            for region in site.regions:
                yield from region.walk()


@dataclasses.dataclass(frozen=True)
class Site:
    """A control-flow node with its path, such as ``main/decoder/body/if_3``."""

    path: str
    node: ir.Node
    regions: tuple[Region, ...]
    captured: tuple[ir.Value, ...]


@dataclasses.dataclass(frozen=True)
class ControlFlowGraph:
    """The tree of regions of a model."""

    root: Region

    def sites(self) -> list[Site]:
        """Every site, outer before inner, in graph order."""
        return list(self.root.walk())

    def path_of(self, node: ir.Node) -> str:
        """``region/node`` for messages; the operator stands in for a missing name."""
        graph = node.graph
        for region in self._regions(self.root):
            if region.graph is graph:
                return f"{region.path}/{label(node)}"
        return label(node)

    def _regions(self, region: Region) -> Iterator[Region]:
        yield region
        for site in region.sites:
            for child in site.regions:
                yield from self._regions(child)


_LEVEL = "onnx_cfad.level"
_SIDES = {"then_branch": "then", "else_branch": "else"}


def label(node: ir.Node) -> str:
    """A node in a message: operator and name."""
    return f"{node.op_type} '{node.name}'" if node.name else node.op_type


def control_flow(model: ir.Model) -> ControlFlowGraph:
    """Reads the tree of control-flow sites of ``model``."""
    return ControlFlowGraph(_region("main", model.graph))


def _region(path: str, graph: ir.Graph) -> Region:
    taken: set[str] = set()
    sites: list[Site] = []
    counts: dict[str, int] = {}
    for node in graph:
        if not subgraphs_of(node):
            continue
        name = (node.name or "").strip("/").replace("/", ".")
        if not name or name in taken:
            kind = node.op_type.lower()
            while not name or name in taken:
                name = f"{kind}_{counts.get(kind, 0)}"
                counts[kind] = counts.get(kind, 0) + 1
        taken.add(name)
        sites.append(_site(f"{path}/{name}", node))
    return Region(path, graph, tuple(sites))


def mark_level(node: ir.Node) -> None:
    """Says that ``node`` is a level of the loop around it, made by a rewriting: its regions have the loop's path."""
    node.meta[_LEVEL] = True


def _site(path: str, node: ir.Node) -> Site:
    around = path.rpartition("/")[0]
    regions = [
        _region(around if _LEVEL in node.meta else f"{path}/{_SIDES.get(key, key)}", attribute.as_graph())
        for key, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref()
    ]
    return Site(path, node, tuple(regions), tuple(captured_by(node)))


def captured_by(node: ir.Node) -> list[ir.Value]:
    """The outer-scope values that the subgraphs of ``node`` read at any depth, in order of first use."""
    graphs = subgraphs_of(node)
    if len(graphs) < 2:
        return captured_by_graph(graphs[0]) if graphs else []
    return list(dict.fromkeys(value for graph in graphs for value in captured_by_graph(graph)))


def captured_by_graph(graph: ir.Graph) -> list[ir.Value]:
    """The values from outside ``graph`` that it reads at any depth, in order of first use."""
    found: dict[ir.Value, None] = {}
    inside = set(graphs_of(graph))
    for inner in nodes_of(graph):
        for value in inner.inputs:
            if value is not None and value.graph not in inside:
                found.setdefault(value)
    for output in graph.outputs:
        if output.graph not in inside:
            found.setdefault(output)
    return list(found)
