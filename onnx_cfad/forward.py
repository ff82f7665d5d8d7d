"""Forward mode: analyses, the forward sweep, and the finished model; and forward over reverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.base import Prepared
from onnx_cfad.adjoint.directions import check_directions, scan_directions
from onnx_cfad.adjoint.expr import Builder, Expr, zeros_like
from onnx_cfad.adjoint.forward_sweep import ForwardSweep
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.adjoint.sweep import passes_derivative, refuse_missing_rules
from onnx_cfad.collector import resting_collector
from onnx_cfad.defaults import give_defaults_back, set_defaults_aside
from onnx_cfad.differentiate import (
    Gradient,
    Report,
    SiteReport,
    accelerated_sites,
    activity_of,
    differentiate,
    known_estimators,
    make_room,
    named_output,
    node_count,
    record,
    site_reports,
)
from onnx_cfad.errors import ModelError, PlanError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.finish import declared_in, finish
from onnx_cfad.graph.activity import reached_from_selection
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.regions import control_flow
from onnx_cfad.graph.site_marks import mark_branches
from onnx_cfad.graph.stand_in import remove_stand_ins
from onnx_cfad.graph.straight_through import mark_straight_through
from onnx_cfad.graph.types import Types, types_now
from onnx_cfad.graph.walk import parts_of
from onnx_cfad.interface import order_of, record_interface, recorded_holders
from onnx_cfad.model import fingerprint, normalise
from onnx_cfad.names import InterfaceNames, Namer
from onnx_cfad.options import Options
from onnx_cfad.plans.choose import choose_adjoints
from onnx_cfad.plans.plan import Plan, adjoint_from
from onnx_cfad.preparation import mark_implicit
from onnx_cfad.rewriters.fewest_nodes import write_with_fewer_nodes
from onnx_cfad.rewriters.hoist import HoistInvariantsPass
from onnx_cfad.rewriters.localise import LocaliseWeightsPass
from onnx_cfad.selection import Selection, held_name, interface_names, reselect, select
from onnx_cfad.simplify import simplify_branches


def derive(source: ir.Model, options: Options) -> Gradient:
    """Differentiates ``source``, which is consumed, in the mode of ``options``.

    Raises:
        ModelError: As for ``differentiate``.
        PlanError: The plan is impossible.
        UnsupportedOp: As for ``differentiate``.
    """
    by_mode = {"reverse": differentiate, "forward": push_forward, "hvp": push_forward_gradient}
    return by_mode[options.mode](source, options)


@resting_collector()
def push_forward(source: ir.Model, options: Options) -> Gradient:
    """Extends ``source``, which is consumed, by its Jacobian-vector product.

    Raises:
        ModelError: The model is unusable, or lacks a name that the options ask for.
        PlanError: The options ask for what only a reverse pass has.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    _refuse_reverse_options(options)
    if options.loss is not None:
        options = dataclasses.replace(options, loss=None, outputs=(options.loss,))
    origin, order = fingerprint(source), order_of(source) + 1
    model = expand_training(normalise(source))
    defaults = set_defaults_aside(model)
    check_directions(options, model.graph)
    before, own = node_count(model), parts_of(model.graph)
    declared = declared_in(model)
    types = simplify_branches(model, options)
    HoistInvariantsPass()(model)
    mark_straight_through(model, known_estimators(options))
    sites = control_flow(model)
    if options.mode == "forward":  # of a gradient on its way to a Hessian's product, the marks are those of the primal
        mark_branches(sites)
    selection = select(model, options, sites)
    types = types_now(model, types)
    chosen, told, implicit = _prepare(model, types, options)
    types_now(model, types)
    selection = reselect(model, options, selection)
    primal = frozenset(model.graph)
    names = interface_names(model.graph, selection, forward=True)
    warnings = _sweep(model, options, selection, names, implicit) + accelerated_sites(chosen)
    record(model, options, chosen, origin, order)
    record_interface(model, names, {value.name or "": held_name(value) for value in selection.wrt})
    remove_stand_ins(model.graph)
    if options.seeds is not None:
        known = {value.name: value for value in model.graph.outputs}
        results = {given: known[name] for name, given in names.pushed.items()}
        builder = Builder(Namer.of_model(model), model.opset_imports[""])
        primal -= scan_directions(model.graph, tuple(names.tangents.values()), results, options.seeds, builder)
    namer = Namer.on_demand(model)
    write_with_fewer_nodes(model, own, namer)
    LocaliseWeightsPass(namer, selection.wrt)(model)
    wrong = finish(model, primal, declared, names, options.seeds)
    give_defaults_back(model, defaults)
    report = Report(
        tuple(names.tangents), tuple(names.pushed), {}, {}, told, (before, node_count(model)),
        (*names.renamed(), *wrong, *warnings), options.mode, names.tangents, names.pushed, order,
        options.seeds,
    )  # fmt: skip
    return Gradient(model, chosen, report)


@resting_collector()
def push_forward_gradient(source: ir.Model, options: Options) -> Gradient:
    """Forward over reverse: extends ``source``, which is consumed, by Hessian-vector products of its loss.

    Raises:
        ModelError: As for ``push_forward``, or there is no loss.
        PlanError: The plan is impossible.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    check_directions(options, source.graph)
    if options.loss is None:
        raise ModelError("", "a Hessian needs a scalar output, and no loss was named", "Give its name as loss.")
    origin = fingerprint(source)
    first = differentiate(source, dataclasses.replace(options, mode="reverse"))
    gradients = tuple(first.report.gradients.values())
    held = recorded_holders(first.model)
    second = push_forward(first.model, Options(wrt=first.report.wrt, outputs=gradients, mode="hvp"))
    tangents = dict(zip(first.report.wrt, second.report.tangents.values(), strict=True))
    names = InterfaceNames({}, first.report.gradients, tangents, second.report.pushed)
    record(second.model, options, first.plan, origin, second.report.order)
    record_interface(second.model, names, held)
    report = dataclasses.replace(
        first.report,
        nodes=(first.report.nodes[0], second.report.nodes[1]),
        warnings=tuple(dict.fromkeys((*first.report.warnings, *second.report.warnings))),
        mode="hvp",
        tangents=tangents,
        pushed=second.report.pushed,
        order=second.report.order,
    )
    return Gradient(second.model, first.plan, report)


def _refuse_reverse_options(options: Options) -> None:
    plain = Options()
    tape = ("segment", "levels", "tape", "memory", "trips", "profile", "implicit_outputs")
    for name in ("clip_value", "clip_norm", "clip_carries", "replace_nan", "plan_text", *tape):
        if getattr(options, name) != getattr(plain, name):
            raise PlanError(
                name.removesuffix("_text"), "is of a reverse pass, and forward mode has none", "Leave it out."
            )
    remedy = "Tangents are carried along, but for loops that are asked to be implicit."
    if options.plan not in ("auto", "implicit"):
        raise PlanError(f"plan '{options.plan}'", "is of a reverse pass, and forward mode has none", remedy)
    for entry in options.sites:
        if not isinstance(adjoint_from(entry.partition("=")[2]), Implicit):
            raise PlanError(f"site '{entry}'", "is of a reverse pass, and forward mode has none", remedy)


def _prepare(
    model: ir.Model, types: Types, options: Options
) -> tuple[Plan, tuple[SiteReport, ...], dict[ir.Graph, Implicit]]:
    """Puts a stand-in behind every loop that is a fixed point, inner ones first; gives these, and their bodies."""
    builder, sites = Builder(Namer.of_model(model), model.opset_imports[""]), control_flow(model)
    decisions = choose_adjoints(sites, types, options).decisions
    chosen = Plan({path: found for path, found in decisions.items() if isinstance(found.adjoint, Implicit)})
    told = site_reports(sites, chosen)
    prepared: list[Prepared] = []
    for site in reversed(sites.sites()):
        adjoint = chosen.decisions[site.path].adjoint if site.path in chosen else None
        if isinstance(adjoint, Implicit):
            mark_implicit(site.node, adjoint)
            with Blamed(site.node, "it cannot be prepared for tangents", path=site.path):
                prepared.append(adjoint.prepare_tangents(site.node, types, builder))
    adjoints = Prepared.merged(prepared).adjoints
    return chosen, told, {body: adjoint for body, adjoint in adjoints.items() if isinstance(adjoint, Implicit)}


def _sweep(
    model: ir.Model,
    options: Options,
    selection: Selection,
    names: InterfaceNames,
    implicit: dict[ir.Graph, Implicit],
) -> list[str]:
    """Runs the forward sweep over the main graph and adds the interface; gives warnings."""
    graph = model.graph
    activity, sites = activity_of(model, selection), control_flow(model)
    refuse_missing_rules(graph, activity, sites)
    cut = reached_from_selection(graph, passes_derivative)
    builder = Builder(Namer.of_model(model), model.opset_imports[""])
    for name in names.all():
        builder.namer.reserve(name)
    make_room(model, set(names.all()), builder.namer)
    tangents = {value: _input(graph, value, names.tangents[value.name or ""]) for value in selection.wrt}
    sweep = ForwardSweep(activity, cut, sites, tangents, implicit)
    sweep.run(graph, builder, apart=options.seeds is not None)
    warnings: list[str] = []
    outputs = reselect(model, options, selection).outputs
    results: list[Expr] = []
    for output in outputs:
        result = sweep.tangent(output, builder)
        if result is None:
            warnings.append(f"output '{output.name}' depends on nothing differentiated by: its tangent is zero")
            result = zeros_like(builder.expr(output))
        results.append(result)
    sweep.close(graph, builder)
    for output, result in zip(outputs, results, strict=True):
        name = names.pushed[output.name or ""]
        graph.outputs.append(named_output(graph, output, name, result, builder.namer))
    return warnings


def _input(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """A graph input for the tangent of a wrt value."""
    tangent = ir.Value(name=name, type=value.type, shape=value.shape)
    graph.inputs.append(tangent)
    return tangent


__all__: Sequence[str] = ("derive", "push_forward", "push_forward_gradient")
