"""What a model's control flow looks like to differentiation: its sites, what they carry, and what stands in the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnx_cfad.adjoint.sweep import passes_derivative
from onnx_cfad.defaults import set_defaults_aside
from onnx_cfad.errors import ModelError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.graph.activity import Activity, find_activity
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.poles import poles
from onnx_cfad.graph.regions import Site, control_flow, is_branch, is_loop, loop_site
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.interface import order_of, recorded_options
from onnx_cfad.model import Source, load, normalise
from onnx_cfad.names import InterfaceNames
from onnx_cfad.options import Options
from onnx_cfad.plans.choose import choose_adjoints
from onnx_cfad.plans.plan import Plan, written
from onnx_cfad.ports import describe, type_name
from onnx_cfad.rules.registry import rule_for
from onnx_cfad.selection import interface_names, select
from onnx_cfad.simplify import simplify_branches


@dataclasses.dataclass(frozen=True)
class ValueReport:
    """A value in a report: its name, its type, and whether a derivative passes through it."""

    name: str
    type: str
    active: bool


@dataclasses.dataclass(frozen=True)
class SiteInspection:
    """A control-flow site.

    Attributes:
        path: Such as ``main/decoder/body/if_3``.
        kind: Loop, Scan or If.
        trips: How often it runs, as far as the model says; empty for an If.
        adjoint: How it would be run backwards; empty where no derivative passes through it.
        carries: The values handed from one iteration to the next.
        scan_inputs: The tensors read one slice an iteration.
        scan_outputs: The results stacked over the iterations.
        outputs: The results of an If.
        captured: The values of enclosing scopes that it reads.
        fixed_point: Whether a loop iterates to a fixed point, and why, or why not; empty for an If.
        nodes: The number of nodes in its regions.
        sites: The sites inside it.
    """

    path: str
    kind: str
    trips: str
    adjoint: str
    carries: tuple[ValueReport, ...]
    scan_inputs: tuple[ValueReport, ...]
    scan_outputs: tuple[ValueReport, ...]
    outputs: tuple[ValueReport, ...]
    captured: tuple[ValueReport, ...]
    fixed_point: str
    nodes: int
    sites: tuple[SiteInspection, ...]

    @property
    def active(self) -> bool:
        """Whether a derivative passes through the site."""
        return bool(self.adjoint)


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """A node without a VJP rule: where it is, its operator, and whether a derivative has to pass through it."""

    path: str
    operator: str
    active: bool


@dataclasses.dataclass(frozen=True)
class PoleReport:
    """A node whose derivative may be infinite or NaN: where it is, its operator, and at what value."""

    path: str
    operator: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The control flow of a model.

    Attributes:
        inputs: Its inputs.
        outputs: Its outputs.
        seeds: What the seed of each output would be called.
        gradients: What the gradient by each wrt value would be called.
        opset: Of the default domain, as the file has it; None where the file imports none.
        working_opset: Of the default domain, after normalisation: that of the gradient model.
        nodes: The number of nodes, subgraphs included.
        sites: The control-flow sites of the main graph.
        without_rule: Every node without a VJP rule, those in the way first.
        poles: The nodes whose derivative may be infinite or NaN at a value that nothing keeps them from.
        remarks: Why nothing is active, if so, and names that are taken.
        order: The order of the derivatives that the model holds, as it says; 0 for a model that was not differentiated.
        mode: How it was differentiated last: "reverse", "forward" or "hvp"; empty where it was not.
    """

    inputs: tuple[ValueReport, ...]
    outputs: tuple[ValueReport, ...]
    seeds: Mapping[str, str]
    gradients: Mapping[str, str]
    opset: int | None
    working_opset: int
    nodes: int
    sites: tuple[SiteInspection, ...]
    without_rule: tuple[NodeReport, ...]
    poles: tuple[PoleReport, ...]
    remarks: tuple[str, ...]
    order: int = 0
    mode: str = ""


def inspect(source: Source, options: Options | None = None) -> Inspection:
    """Reads the control flow of a model.

    Args:
        source: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``; never modified.
        options: What would be differentiated, for the activity; default: every floating-point output by every
            floating-point input.

    Raises:
        ModelError: The model is unusable, or lacks a name that the options ask for.
    """
    loaded = load(source)
    opset = _opset(loaded)
    model = expand_training(normalise(loaded))
    set_defaults_aside(model)
    author = _symbols(model.graph)
    options = options or Options()
    types = simplify_branches(model, options)
    activity, names, remarks = _activity(model, options)
    sites = control_flow(model)
    plan = choose_adjoints(sites, types, options)
    view = _View(activity, plan, author)
    lacking = [node for node in nodes_of(model.graph) if rule_for(node) is None and not is_loop(node) | is_branch(node)]
    found = [NodeReport(sites.path_of(n), _operator(n), _is_in_the_way(n, activity)) for n in lacking]
    return Inspection(
        inputs=view.values(model.graph.inputs),
        outputs=view.values(model.graph.outputs),
        seeds=names.seeds,
        gradients=names.gradients,
        opset=opset,
        working_opset=model.opset_imports[""],
        nodes=len(nodes_of(model.graph)),
        sites=tuple(view.site(site) for site in sites.root.sites),
        without_rule=tuple(sorted(found, key=lambda report: not report.active)),
        poles=tuple(
            PoleReport(sites.path_of(node), _operator(node), reason + _unless_cut(node, activity))
            for node, reason in poles(model.graph, activity.is_active)
        ),
        remarks=remarks,
        order=order_of(loaded),
        mode=str(recorded_options(loaded).get("mode", "")),
    )


def _opset(model: ir.Model) -> int | None:
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


def _activity(model: ir.Model, options: Options) -> tuple[Activity, InterfaceNames, tuple[str, ...]]:
    """Which values are active, and the names of seeds and gradients, and remarks.

    Nothing, and the reason, where the defaults find nothing to differentiate.
    """
    try:
        selection = select(model, options, control_flow(model))
    except ModelError as error:
        if options != Options():
            raise
        return Activity(set(), set(), set()), InterfaceNames({}, {}), (str(error),)
    names = interface_names(model.graph, selection)
    activity = find_activity(model.graph, selection.wrt, selection.outputs, passes_derivative, selection.stopped)
    return activity, names, names.renamed()


@dataclasses.dataclass(frozen=True)
class _View:
    """What a report on a site or a value is made from.

    Attributes:
        activity: The active values.
        plan: The adjoints of the sites.
        author: The symbolic dimensions that the model's author named.
    """

    activity: Activity
    plan: Plan
    author: frozenset[str]

    def site(self, site: Site) -> SiteInspection:
        node = site.node
        loop = loop_site(node) if is_loop(node) else None
        active = any(self.activity.is_active(output) for output in node.outputs)
        return SiteInspection(
            path=site.path,
            kind=node.op_type,
            trips=str(trip_count(loop)) if loop else "",
            adjoint=written(self.plan[site.path]) if active and site.path in self.plan else "",
            carries=self.values(carry.entry for carry in loop.carries) if loop else (),
            scan_inputs=self.values(source.source for source in loop.inputs) if loop else (),
            scan_outputs=self.values(output.stacked for output in loop.outputs) if loop else (),
            outputs=self.values(node.outputs) if loop is None else (),
            captured=self.values(value for value in site.captured if not _is_shape_arithmetic(value)),
            fixed_point=str(find_fixed_point(loop)) if loop else "",
            nodes=sum(len(nodes_of(region.graph)) for region in site.regions),
            sites=tuple(self.site(inner) for region in site.regions for inner in region.sites),
        )

    def values(self, values: Iterable[ir.Value]) -> tuple[ValueReport, ...]:
        return tuple(ValueReport(v.name or "", self.type(v.type, v.shape), self.activity.is_active(v)) for v in values)

    def type(self, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> str:
        if type_ is None:
            return "unknown"
        if isinstance(type_, ir.SequenceType):
            return f"sequence of {self.type(type_.elem_type, shape)}"
        if isinstance(type_, ir.OptionalType):
            return f"optional {self.type(type_.elem_type, shape)}"
        name = type_name(type_.dtype)
        return f"{name}[of unknown rank]" if shape is None else describe(name, map(self.dim, shape.dims))

    def dim(self, dim: int | ir.SymbolicDim) -> int | str | None:
        """A number or the author's name for it; what inference invented says nothing to a reader."""
        return dim if isinstance(dim, int) else dim.value if dim.value in self.author else None


def _symbols(graph: ir.Graph) -> frozenset[str]:
    shapes = [value.shape for value in (*graph.inputs, *graph.outputs) if value.shape is not None]
    return frozenset(d.value for shape in shapes for d in shape.dims if isinstance(d, ir.SymbolicDim) and d.value)


def _is_shape_arithmetic(value: ir.Value) -> bool:
    """Whether a value is an integer or boolean constant: an axis, a bound, a step."""
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.dtype.is_floating_point()


def _unless_cut(node: ir.Node, activity: Activity) -> str:
    return "; 0 where a selection leaves it out" if activity.cuttable.intersection(node.outputs) else ""


def _is_in_the_way(node: ir.Node, activity: Activity) -> bool:
    return any(map(activity.is_active, node.outputs)) and any(map(activity.is_active, node.inputs))


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
