"""Which values carry a derivative: they depend on wrt and reach a seeded output through differentiable types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from onnx_cfad.graph.element_types import FLOATING
from onnx_cfad.graph.regions import LoopSite, branch_site, captured_by_graph, is_branch, is_loop, loop_site
from onnx_cfad.graph.stand_in import is_stand_in, stand_in
from onnx_cfad.graph.straight_through import carries_estimate
from onnx_cfad.graph.trips import runs
from onnx_cfad.graph.walk import nodes_of


@dataclasses.dataclass(frozen=True)
class Activity:
    """The values that a derivative passes through, in all scopes.

    Attributes:
        varied: Values that depend on a wrt value.
        useful: Values that a seeded output depends on.
        cuttable: Values that reach a selecting operator (Where, Clip, Max, ...) which a derivative passes through, so
            that parts of their cotangent may be exactly zero while their derivative is NaN or Inf.
        skippable: Values that reach the outputs through a branch which may not be taken, a loop which may not run, or
            a carry that an iteration may replace, and in no other way, so that their whole cotangent may be zero.
        singular: Skippable values that depend on a result of an operator with poles (Log, Div, Sqrt, ...): they may be
            Inf or NaN, and so may the derivative of any operator there.
    """

    varied: set[ir.Value]
    useful: set[ir.Value]
    cuttable: set[ir.Value]
    skippable: set[ir.Value] = dataclasses.field(default_factory=set[ir.Value])
    singular: set[ir.Value] = dataclasses.field(default_factory=set[ir.Value])

    def is_active(self, value: ir.Value | None) -> bool:
        """Whether a derivative passes through ``value``."""
        return value is not None and value in self.varied and value in self.useful

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Makes ``new``, which stands where ``old`` stood, as active as that."""
        for values in (self.varied, self.useful, self.cuttable, self.skippable, self.singular):
            if old in values:
                values.add(new)


Passes = Callable[[ir.Node], bool]

_SELECTING = frozenset(("Where", "Clip", "Max", "Min", "ReduceMax", "ReduceMin", "TopK", "Compress"))

_SINGULAR = frozenset(("Log", "Sqrt", "Div", "Reciprocal", "Pow", "Exp", "Acos", "Asin", "Acosh", "Atanh"))


def find_activity(
    graph: ir.Graph,
    wrt: Iterable[ir.Value],
    seeded: Iterable[ir.Value],
    passes: Passes,
    stopped: frozenset[ir.Value] = frozenset(),
    masks: Collection[ir.Node] = (),
    cut: Collection[ir.Value] = (),
) -> Activity:
    """Finds the active values of ``graph`` and its subgraphs.

    Args:
        graph: The main graph.
        wrt: Values to differentiate by.
        seeded: Values that a cotangent enters at.
        passes: Whether a derivative may pass through a node (false for operators declared nondifferentiable).
        stopped: Values that are constants by the user's word.
        masks: The nodes that guard and select for masked branches: nothing that is NaN passes between them.
        cut: The values that enter masked branches, and those that such a branch hands on as they are.

    Cost is linear in the number of nodes times the passes that loop carries need (at most the number of carries).
    """
    varied = {value for value in wrt if carries_derivative(value) and value not in stopped}
    _Forward(varied, passes, stopped).graph(graph)
    useful = set(seeded)
    _Backward(useful, passes).graph(graph)
    active, nodes = varied & useful, nodes_of(graph)
    cuttable: set[ir.Value] = set()
    for node in nodes:
        if node.op_type in _SELECTING and node not in masks and not active.isdisjoint(node.outputs):
            cuttable.update(value for value in node.inputs if value in active)
    if cuttable:
        _Backward(cuttable, passes).graph(graph)
    skippable = {*cut, *(value for node in nodes for value in _read_in_some_runs(node))} & active
    if skippable:
        _Backward(skippable, passes).graph(graph)
        certain = set(seeded)
        _BackwardInAnyCase(certain, passes, frozenset(cut)).graph(graph)
        skippable -= certain
    singular = {output for node in nodes if node.op_type in _SINGULAR for output in node.outputs}
    singular = reached(graph, singular, lambda _, __: True) & skippable if singular and skippable else set()
    return Activity(varied, useful, cuttable, skippable, singular)


def _read_in_some_runs(node: ir.Node) -> set[ir.Value]:
    """The values that an If or a Loop may read: in a branch, in an iteration, or where there is none."""
    if is_branch(node):
        return {value for branch in branch_site(node).branches for value in captured_by_graph(branch)}
    if not is_loop(node):
        return set()
    site = loop_site(node)
    return {*(carry.initial for carry in site.carries), *(() if runs(site) else captured_by_graph(site.body))}


def reached_from_selection(graph: ir.Graph, passes: Passes) -> set[ir.Value]:
    """The values behind a selecting operator: parts of their tangent may be exactly zero where a derivative is NaN."""
    chosen = {output for node in nodes_of(graph) if node.op_type in _SELECTING for output in node.outputs}
    _Forward(chosen, passes, frozenset()).graph(graph)
    return chosen


def reached(
    graph: ir.Graph, values: Iterable[ir.Value], passes: Callable[[ir.Node, set[ir.Value]], bool]
) -> set[ir.Value]:
    """The values of any type that depend on ``values`` through nodes that ``passes`` admits, told what is reached."""
    marked = set(values)
    _Forward(marked, lambda node: passes(node, marked), frozenset(), every_type=True).graph(graph)
    return marked


def carries_derivative(value: ir.Value) -> bool:
    """Whether the type of ``value`` is floating point (or a sequence or optional of such tensors)."""
    type_ = value.type
    if type(type_) is ir.TensorType:  # the common kind first: to ask for the others takes long
        return type_.dtype in FLOATING or carries_estimate(value)
    if carries_estimate(value):
        return True
    while isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        type_ = type_.elem_type
    return type_ is None or type_.dtype in FLOATING


class _Forward:
    """Marks what depends on the marked values."""

    def __init__(
        self, marked: set[ir.Value], passes: Passes, stopped: frozenset[ir.Value], *, every_type: bool = False
    ) -> None:
        self.marked = marked
        self.passes = passes
        self.stopped = stopped
        self.every_type = every_type

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if is_loop(node):
                self.loop(loop_site(node))
            elif is_branch(node):
                for branch in branch_site(node).branches:
                    self.graph(branch)
                    self.hand_over(zip(branch.outputs, node.outputs, strict=True))
            elif not self.marked.isdisjoint(node.inputs) and self.passes(node):
                self.mark(node.outputs)

    def loop(self, site: LoopSite) -> None:
        self.hand_over((source.source, source.slice) for source in site.inputs)
        self.hand_over((carry.initial, carry.entry) for carry in site.carries)
        while True:
            self.graph(site.body)
            if not self.hand_over((carry.exit, carry.entry) for carry in site.carries):
                break
        for carry in site.carries:
            self.hand_over(((carry.initial, carry.final), (carry.exit, carry.final)))
        self.hand_over((output.element, output.stacked) for output in site.outputs)

    def hand_over(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> bool:
        return self.mark(target for source, target in pairs if source in self.marked)

    def mark(self, values: Iterable[ir.Value]) -> bool:
        return _mark(self.marked, values, self.stopped, every_type=self.every_type)


class _Backward:
    """Marks what the marked values depend on."""

    def __init__(self, marked: set[ir.Value], passes: Passes) -> None:
        self.marked = marked
        self.passes = passes

    def graph(self, graph: ir.Graph) -> None:
        for node in reversed(graph):
            if is_loop(node):
                self.loop(loop_site(node))
            elif is_branch(node):
                if is_stand_in(node) and not self.marked.isdisjoint(stand_in(node).results):
                    self.marked.update(node.outputs)  # they depend on each other, from one iteration to the next
                for branch in branch_site(node).branches:
                    self.hand_over(zip(node.outputs, branch.outputs, strict=True))
                    self.graph(branch)
            elif not self.marked.isdisjoint(node.outputs) and self.passes(node):
                self.marked.update(v for v in node.inputs if v is not None and carries_derivative(v))

    def loop(self, site: LoopSite) -> None:
        self.hand_over((output.stacked, output.element) for output in site.outputs)
        self.hand_over((carry.final, carry.exit) for carry in site.carries)
        while True:
            self.graph(site.body)
            if not self.hand_over((carry.entry, carry.exit) for carry in site.carries):
                break
        for carry in site.carries:
            self.hand_over(((carry.entry, carry.initial), (carry.final, carry.initial)))
        self.hand_over((source.slice, source.source) for source in site.inputs)

    def hand_over(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> bool:
        return _mark(self.marked, (target for source, target in pairs if source in self.marked), frozenset())


class _BackwardInAnyCase(_Backward):
    """The same, but only what the marked values depend on whichever branch is taken, and however often a loop runs.

    Args:
        marked: Values.
        passes: Whether a derivative passes through a node.
        cut: What enters masked branches, or is handed on by them: a Where there may cut it off.
    """

    def __init__(self, marked: set[ir.Value], passes: Passes, cut: frozenset[ir.Value]) -> None:
        super().__init__(marked, passes)
        self.cut = cut

    def graph(self, graph: ir.Graph) -> None:
        for node in reversed(graph):
            if is_branch(node):
                self.branch(node)
            elif is_loop(node):
                self.loop(loop_site(node))
            elif not self.marked.isdisjoint(node.outputs) and self.passes(node):
                reads = (v for v in node.inputs if v is not None and carries_derivative(v))
                self.marked.update(v for v in reads if not (node.op_type == "Where" and v in self.cut))

    def loop(self, site: LoopSite) -> None:
        """Marks what every iteration depends on; what is captured, if there is one; a carry that each one reads."""
        read = [carry for carry in site.carries if carry.final in self.marked]
        while True:
            inside = {output.element for output in site.outputs if output.stacked in self.marked}
            inside.update(carry.exit for carry in read)
            _BackwardInAnyCase(inside, self.passes, self.cut).graph(site.body)
            still = [carry for carry in read if carry.entry in inside]
            if len(still) == len(read):
                break
            read = still  # the exit of an iteration that is not the last is read by the next one, or not at all
        some = runs(site)
        captured = inside.intersection(captured_by_graph(site.body))
        self.marked.update(inside if some else inside - captured)
        self.marked.update(carry.initial for carry in (site.carries if some else read) if carry.entry in inside)
        self.marked.update(source.source for source in site.inputs if source.slice in inside)

    def branch(self, node: ir.Node) -> None:
        """Marks what each branch has inside, and what both read."""
        if is_stand_in(node) and not self.marked.isdisjoint(stand_in(node).results):
            self.marked.update(node.outputs)
        read: list[set[ir.Value]] = []
        for branch in branch_site(node).branches:
            inside = {
                value for output, value in zip(node.outputs, branch.outputs, strict=True) if output in self.marked
            }
            _BackwardInAnyCase(inside, self.passes, self.cut).graph(branch)
            captured = inside.intersection(captured_by_graph(branch))
            self.marked.update(inside - captured)
            read.append(captured)
        self.marked.update(set.intersection(*read))


def _mark(
    marked: set[ir.Value], values: Iterable[ir.Value], stopped: frozenset[ir.Value], *, every_type: bool = False
) -> bool:
    """Adds those of ``values`` that can carry a derivative; whether there was a new one."""
    new = [v for v in values if v not in marked and v not in stopped and (every_type or carries_derivative(v))]
    marked.update(new)
    return bool(new)
