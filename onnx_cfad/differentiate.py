"""One reverse-mode differentiation: analyses, the reverse sweep, and the finished model."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from onnx_cfad.adjoint.base import Prepared
from onnx_cfad.adjoint.clip import Clipping
from onnx_cfad.adjoint.cotangents import Cotangents
from onnx_cfad.adjoint.directions import check_directions, scan_directions
from onnx_cfad.adjoint.expr import Builder, Expr, full, zeros_like
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.records import Records
from onnx_cfad.adjoint.sweep import Sweep, passes_derivative, refuse_missing_rules
from onnx_cfad.collector import resting_collector
from onnx_cfad.defaults import give_defaults_back, set_defaults_aside
from onnx_cfad.diagnostics import convergence_outputs
from onnx_cfad.errors import ModelError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.finish import declared_in, finish
from onnx_cfad.graph.activity import Activity, find_activity
from onnx_cfad.graph.regions import ControlFlowGraph, control_flow, is_loop, loop_site
from onnx_cfad.graph.site_marks import mark_branches
from onnx_cfad.graph.stand_in import remove_stand_ins
from onnx_cfad.graph.straight_through import mark_straight_through
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.types import types_now
from onnx_cfad.graph.walk import graphs_of, nodes_of, parts_of, structure
from onnx_cfad.interface import order_of, record_diagnostics, record_interface
from onnx_cfad.model import fingerprint, normalise, save
from onnx_cfad.names import InterfaceNames, Namer
from onnx_cfad.options import Options
from onnx_cfad.planning import profile_for
from onnx_cfad.plans.choose import choose_adjoints
from onnx_cfad.plans.plan import Plan, written
from onnx_cfad.preparation import prepare_sites
from onnx_cfad.rewriters.common_work import HoistCommonWorkPass
from onnx_cfad.rewriters.fewest_nodes import write_with_fewer_nodes
from onnx_cfad.rewriters.fold_branch import FoldConstantBranchPass
from onnx_cfad.rewriters.hoist import HoistInvariantsPass
from onnx_cfad.rewriters.keep_unfolded import KeepUnfoldedPass
from onnx_cfad.rewriters.localise import LocaliseWeightsPass
from onnx_cfad.rewriters.predicate_branch import drop_guards
from onnx_cfad.rules.registry import straight_through_operators
from onnx_cfad.saving import message_of
from onnx_cfad.selection import Selection, held_name, interface_names, reselect, select
from onnx_cfad.simplify import simplify_branches


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """One control-flow site in a report: where it is, how often it runs, and how it is run backwards."""

    path: str
    kind: str
    trips: str
    adjoint: str
    bytes: int | str | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What was decided.

    Attributes:
        wrt: Names differentiated by.
        outputs: Names differentiated.
        seeds: The seed input of each differentiated output; empty for a loss.
        gradients: The output that holds the gradient, for each of ``wrt``.
        sites: The control-flow sites and their adjoints.
        nodes: Number of nodes before and after, subgraphs included.
        warnings: Things the user should know.
        mode: "reverse", "forward" or "hvp".
        tangents: The tangent input of each of ``wrt``; empty in reverse mode.
        pushed: The output that holds the tangent, for each of ``outputs`` (for each gradient of an hvp).
        order: The order of the derivatives, those of the source included where it was differentiated before.
        directions: The length of the leading axis of seeds and results (a name where the run decides); None for none.
    """

    wrt: tuple[str, ...]
    outputs: tuple[str, ...]
    seeds: Mapping[str, str]
    gradients: Mapping[str, str]
    sites: tuple[SiteReport, ...]
    nodes: tuple[int, int]
    warnings: tuple[str, ...]
    mode: str = "reverse"
    tangents: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    pushed: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    order: int = 1
    directions: int | str | None = None

    def __str__(self) -> str:
        """A line for each site, what is differentiated by what, the names of seeds and gradients, and the warnings."""
        lines = [f"{site.path}: {site.adjoint} ({site.reason})" for site in self.sites]
        named = {
            "differentiated": self.outputs, "by": self.wrt, "seeds": self.seeds.values(),
            "gradients": self.gradients.values(), "tangents in": self.tangents.values(),
            "tangents out": self.pushed.values(),
        }  # fmt: skip
        lines += [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
        lines.append(f"nodes: {self.nodes[0]} before, {self.nodes[1]} after")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


@dataclasses.dataclass(frozen=True, repr=False)
class Gradient:
    """A differentiated model.

    Attributes:
        model: The model, ready to be saved or run.
        plan: The adjoint of every control-flow site, by path.
        report: What was decided.
    """

    model: ir.Model
    plan: Plan
    report: Report

    def __str__(self) -> str:
        """What was decided, as ``report`` says it; a model may have any number of nodes."""
        return str(self.report)

    def __repr__(self) -> str:
        by, nodes = ", ".join(self.report.wrt), self.report.nodes[1]
        return f"<Gradient of {', '.join(self.report.outputs)} by {by}: {nodes} nodes, {self.report.mode} mode>"

    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message.

        Raises:
            ModelError: It is nested so deep that nothing could read it.
        """
        return message_of(self.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to ``path``, whole or not at all."""
        save(self.model, path)


@resting_collector()
def differentiate(source: ir.Model, options: Options) -> Gradient:
    """Differentiates ``source``, which is consumed.

    Raises:
        ModelError: The model is unusable, or lacks a name that the options ask for.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    origin, order = fingerprint(source), order_of(source) + 1
    profile = profile_for(options, origin)
    model = expand_training(normalise(source))
    check_directions(options, model.graph)
    before, own = node_count(model), parts_of(model.graph)
    declared, defaults = declared_in(model), set_defaults_aside(model)
    types = simplify_branches(model, options)
    HoistInvariantsPass()(model)
    mark_straight_through(model, known_estimators(options))
    sites = control_flow(model)
    mark_branches(sites)
    adjoints = choose_adjoints(sites, types, options, profile)
    trips = site_reports(sites, adjoints)
    selection = select(model, options, sites)
    activity, known = activity_of(model, selection), structure(model.graph)
    refuse_missing_rules(model.graph, activity, sites)
    prepared = prepare_sites(model, types, sites, adjoints)
    types = types_now(model, types)
    FoldConstantBranchPass(types.constants)(model)
    selection = reselect(model, options, selection)
    drop_guards(prepared.guards, selection.wrt)
    primal = frozenset(model.graph)
    if structure(model.graph) != known:
        activity, sites = activity_of(model, selection, prepared), control_flow(model)
        refuse_missing_rules(model.graph, activity, sites)
    clipping = Clipping(options.clip_value, options.clip_norm, options.clip_carries, options.replace_nan)
    sweep = Sweep(activity, types, sites, prepared, Records(), clipping)
    names, before_reverse = interface_names(model.graph, selection), frozenset(nodes_of(model.graph))
    builder = Builder(Namer.of_model(model), model.opset_imports[""])
    warnings = _reverse(model, selection, names, sweep, builder, implicit_outputs=options.implicit_outputs)
    HoistCommonWorkPass(before_reverse)(model)
    KeepUnfoldedPass(before_reverse, builder.namer)(model)
    warnings += [f"never taken in the profile: {path}" for path in adjoints.cold]
    warnings += accelerated_sites(adjoints)
    record(model, options, adjoints, origin, order)
    record_interface(model, names, {value.name or "": held_name(value) for value in selection.wrt})
    if options.seeds is not None:
        results = {names.gradients[value.name or ""]: value for value in selection.wrt}
        outer = Builder(builder.namer, builder.opset)
        scan_directions(model.graph, tuple(names.seeds.values()), results, options.seeds, outer)
    write_with_fewer_nodes(model, own, builder.namer)
    LocaliseWeightsPass(builder.namer, selection.wrt)(model)
    if any(isinstance(decision.adjoint, Implicit) for decision in adjoints.decisions.values()):
        remove_stand_ins(model.graph)
    wrong = finish(model, primal, declared, names, options.seeds)
    give_defaults_back(model, defaults)
    outputs, counts = tuple(v.name or "" for v in selection.outputs), (before, node_count(model))
    warnings = (*adjoints.warnings, *names.renamed(), *wrong, *warnings)
    report = Report(
        tuple(names.gradients), outputs, names.seeds, names.gradients, trips, counts, warnings, order=order,
        directions=options.seeds,
    )  # fmt: skip
    return Gradient(model, adjoints, report)


def known_estimators(options: Options) -> tuple[str, ...]:
    """The operators to differentiate by a straight-through estimator.

    Raises:
        ModelError: There is none for an operator.
    """
    known = straight_through_operators()
    unknown = next((name for name in options.straight_through if name not in known), None)
    if unknown is not None:
        raise ModelError(
            f"straight_through '{unknown}'",
            f"there is no straight-through estimator for this operator; there is one for {', '.join(known)}",
            "Name one of these.",
        )
    return options.straight_through


def activity_of(model: ir.Model, selection: Selection, prepared: Prepared | None = None) -> Activity:
    """The values that a derivative passes through."""
    prepared = prepared or Prepared({})
    return find_activity(
        model.graph,
        selection.wrt,
        selection.outputs,
        passes_derivative,
        selection.stopped,
        masks={*prepared.guards, *prepared.selections},
        cut={*prepared.handed_on, *(value for guard in prepared.guards for value in guard.inputs if value is not None)},
    )


def _reverse(
    model: ir.Model,
    selection: Selection,
    names: InterfaceNames,
    sweep: Sweep,
    builder: Builder,
    *,
    implicit_outputs: bool,
) -> list[str]:
    """Appends the reverse pass, which ``builder`` records, to the main graph; gives warnings."""
    for name in names.all():
        builder.namer.reserve(name)
    make_room(model, set(names.all()), builder.namer)
    cotangents = Cotangents(builder)
    for output in dict.fromkeys(selection.outputs):
        cotangents.add(output, _seed(model, output, builder, names))
    sweep.run(model.graph, cotangents, in_loop=False)
    warnings: list[str] = []
    results = [_gradient(value, cotangents, builder, warnings) for value in selection.wrt]
    if sweep.clipping.is_on:
        results = sweep.clipping.gradients(results)
    told = convergence_outputs(sweep.diagnostics, builder, warnings) if implicit_outputs else {}
    builder.append_to(model.graph)
    made = frozenset(builder.nodes)
    for value, result in zip(selection.wrt, results, strict=True):
        name = names.gradients[value.name or ""]
        model.graph.outputs.append(named_output(model.graph, value, name, result, builder.namer, made))
    model.graph.outputs.extend(told)
    record_diagnostics(model, {value.name or "": path for value, path in told.items()})
    return warnings


def make_room(model: ir.Model, interface: set[str], namer: Namer) -> None:
    """Renames values inside the model that have an interface name; inputs, outputs and initializers are the user's."""
    visible = {*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()}
    for graph in graphs_of(model.graph):
        values = [*graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs)]
        for value in values:
            if value.name in interface and value not in visible:
                value.name = namer.fresh(f"{value.name}.inner")


def _seed(model: ir.Model, output: ir.Value, builder: Builder, names: InterfaceNames) -> Expr:
    """A graph input for the cotangent of ``output``, or the number 1 for a loss, which has no seed."""
    assert output.dtype is not None
    name = names.seeds.get(output.name or "")
    if name is None:
        return full(builder.expr(output).shape, 1, output.dtype, builder, like=builder.expr(output))
    seed = ir.Value(name=name, type=output.type, shape=output.shape)
    model.graph.inputs.append(seed)
    return builder.expr(seed)


def _gradient(value: ir.Value, cotangents: Cotangents, builder: Builder, warnings: list[str]) -> Expr:
    total = cotangents.take(value)
    if total is not None:
        return total
    warnings.append(f"no differentiated output depends on '{value.name}': its gradient is zero")
    return zeros_like(builder.expr(value))


def named_output(
    graph: ir.Graph, value: ir.Value, name: str, result: Expr, namer: Namer, made: frozenset[ir.Node] = frozenset()
) -> ir.Value:
    """A graph output called ``name``, of the type and shape of ``value``, that holds ``result``.

    What the reverse pass made takes the name itself; a value of the primal, a constant or another output is copied.
    """
    output = result.value
    if output.producer() not in made or output.is_graph_output():
        copy = ir.Node("", "Identity", [output], name=namer.fresh(f"{name}/output"))
        graph.append(copy)
        output = copy.outputs[0]
    output.name, output.type, output.shape = name, value.type, value.shape
    return output


def record(model: ir.Model, options: Options, plan: Plan, origin: str, order: int) -> None:
    """Writes into the model what is needed to make it again."""
    from onnx_cfad import __version__  # noqa: PLC0415 - the package imports this module

    model.metadata_props["onnx_cfad.version"] = __version__
    model.metadata_props["onnx_cfad.options"] = json.dumps(dataclasses.asdict(options), sort_keys=True)
    model.metadata_props["onnx_cfad.plan"] = plan.to_json()
    model.metadata_props["onnx_cfad.source"] = origin
    model.metadata_props["onnx_cfad.order"] = str(order)


def site_reports(sites: ControlFlowGraph, adjoints: Plan) -> tuple[SiteReport, ...]:
    """The sites that a plan decides about, as they are told."""
    found: list[SiteReport] = []
    for site in sites.sites():
        trips = str(trip_count(loop_site(site.node))) if is_loop(site.node) else ""
        if site.path in adjoints:
            found.append(
                SiteReport(
                    site.path,
                    site.node.op_type,
                    trips,
                    written(adjoints[site.path]),
                    adjoints.decisions[site.path].told,
                    adjoints.decisions[site.path].reason,
                )
            )
    return tuple(found)


def accelerated_sites(adjoints: Plan) -> list[str]:
    """What to tell of the loops of a plan whose iterations are accelerated."""
    told = "its iterations are accelerated: its results differ from the model's within its tolerance"
    found = [(path, decision.adjoint) for path, decision in adjoints.decisions.items()]
    return [
        f"{path}: {told}" for path, adjoint in found if isinstance(adjoint, Implicit) and adjoint.forward != "plain"
    ]


def node_count(model: ir.Model) -> int:
    """The number of nodes, subgraphs included."""
    return len(nodes_of(model.graph))


__all__: Sequence[str] = ("Gradient", "Report", "SiteReport", "differentiate")
