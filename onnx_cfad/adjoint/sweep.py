"""The reverse sweep: nodes in reverse order, cotangents of their outputs to cotangents of their inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import onnx.defs
import onnx_ir as ir

from onnx_cfad.adjoint.base import Prepared
from onnx_cfad.adjoint.clip import Clipping
from onnx_cfad.adjoint.cotangents import Cotangents, guarded, sum_to
from onnx_cfad.adjoint.expr import Builder, Expr, Update
from onnx_cfad.adjoint.records import Records
from onnx_cfad.errors import CfadError, UnsupportedOp
from onnx_cfad.graph.activity import Activity
from onnx_cfad.graph.faults import Blamed, placed
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch, is_loop
from onnx_cfad.graph.types import Types
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.rules.registry import NoDerivative, Rule, attributes_of, rule_for

_LINEAR = frozenset(("Add", "Sub", "Neg", "Identity", "Cast", "CastLike", "Sum"))
_POLES = frozenset(  # a finite operand may have an infinite derivative, or an infinite result
    ("Sqrt", "Log", "Div", "Pow", "Reciprocal", "Exp", "Acos", "Asin", "Acosh", "Atanh", "Tan", "Sinh", "Cosh", "Mul")
)
_ROWWISE = frozenset(("Softmax", "LogSoftmax"))  # NaN in a row that is masked throughout stays in that row


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """What the run knows about a loop that is run backwards implicitly.

    Attributes:
        builder: The scope of the values.
        converged: Whether the implicit gradient holds (bool scalar).
        residual: How far one more iteration would move the result, relative to it (scalar).
        iterations: Products with the transposed map that the adjoint system took (int64 scalar).
    """

    builder: Builder
    converged: Expr
    residual: Expr
    iterations: Expr


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What the sweep knows in every scope.

    Attributes:
        activity: The values that a derivative passes through.
        types: What shape inference proved about loop bodies.
        sites: Paths for messages.
        prepared: How each control-flow site is run backwards.
        records: What the forward pass has been made to record so far.
        clipping: What is clipped on the way.
        diagnostics: What implicit loops say about themselves, by site path.
    """

    activity: Activity
    types: Types
    sites: ControlFlowGraph
    prepared: Prepared
    records: Records
    clipping: Clipping = dataclasses.field(default_factory=Clipping)
    diagnostics: dict[str, Diagnostics] = dataclasses.field(default_factory=dict[str, Diagnostics])

    def run(self, graph: ir.Graph, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Sweeps over the nodes of ``graph``.

        ``cotangents`` starts with those of the graph's results and ends with those of what enters the graph: its
        inputs, initializers and captured values.
        """
        for node in reversed(list(graph)):
            if node.op_type == "Constant" or not any(output in cotangents for output in node.outputs):
                continue  # the cotangent of a Constant waits: it may be asked for
            if not cotangents.held.isdisjoint(node.outputs):
                continue
            if is_loop(node) or is_branch(node):
                self._site(node, cotangents, in_loop)
            else:
                self._operator(node, cotangents)

    def _site(self, node: ir.Node, cotangents: Cotangents, in_loop: bool) -> None:
        adjoint = self.prepared.adjoints[subgraphs_of(node)[0]]
        path = self.sites.path_of(node)  # now: another node may take its place
        try:
            with Blamed(node, "it cannot be run backwards", path=path):
                adjoint.reverse(self, node, cotangents, in_loop=in_loop)
        except CfadError as error:
            if error.where.startswith("main"):
                raise
            raise placed(path, node, error) from error

    def _operator(self, node: ir.Node, cotangents: Cotangents) -> None:
        cts = tuple(cotangents.take(output) for output in node.outputs)
        rule = rule_for(node)
        if not isinstance(rule, Rule):
            return  # nondifferentiable; operators without an entry were refused before the sweep
        try:
            with Blamed(node, "its VJP rule fails"):
                self._apply(rule, node, cts, cotangents)
        except CfadError as error:
            raise placed(self.sites.path_of(node), node, error) from error

    def _apply(self, rule: Rule, node: ir.Node, cts: tuple[Expr | None, ...], cotangents: Cotangents) -> None:
        builder = cotangents.builder
        single = len(node.outputs) == 1
        ys = tuple(builder.expr(output) for output in node.outputs)
        xs = [builder.optional(value) for value in node.inputs]
        attributes = attributes_of(node, rule.attributes, builder.opset)
        results = rule.function(cts[0] if single else cts, ys[0] if single else ys, *xs, **attributes)
        results = results if isinstance(results, (tuple, list)) else (results,)
        for x, given in zip(xs, results, strict=False):
            if x is None or not self.activity.is_active(x.value):
                continue
            result: Any = given() if callable(given) else given
            if result is not None:
                cotangents.add(x.value, self._fitted(rule, node, cts[0], x, result))

    def _updated(self, node: ir.Node, update: Update, total: Expr | None) -> Expr:
        """What ``update``, which is applied after ``node`` was left, makes of the cotangents so far."""
        with Blamed(node, "its VJP rule fails", path=self.sites.path_of(node)):
            return update.apply(total)

    def _fitted(self, rule: Rule, node: ir.Node, ct: Expr | None, x: Expr, result: Expr | Update) -> Expr | Update:
        """A rule's result made safe against a cut-off pole and summed back to the shape of its input."""
        if isinstance(result, Update):
            return Update(functools.partial(self._updated, node, result))
        pole = (rule.elementwise or node.op_type in _ROWWISE) and node.op_type not in _LINEAR and self._may_be_cut(node)
        if pole and ct is not None and result.value is not ct.value:
            result = guarded(ct, result)
        if rule.broadcasts:
            result = sum_to(result, node.outputs[0], x)
        if result.value.shape is None and result.value.producer() is not None and x.is_tensor:
            result.value.shape = x.value.shape
        return result

    def _may_be_cut(self, node: ir.Node) -> bool:
        """Whether the cotangent of the node's result may be exactly zero where its derivative is infinite."""
        result, activity = node.outputs[0], self.activity
        if result in activity.cuttable or result in activity.singular:
            return True
        return node.op_type in _POLES and result in activity.skippable


def refuse_missing_rules(graph: ir.Graph, activity: Activity, sites: ControlFlowGraph) -> None:
    """Raises UnsupportedOp that lists every node without a rule that an active value passes through."""
    missing = [node for node in nodes_of(graph) if _lacks_rule(node, activity)]
    if not missing:
        return
    places = "\n".join(f"  {sites.path_of(node)} ({_operator(node)})" for node in missing)
    operators = sorted({_operator(node) for node in missing})
    raise UnsupportedOp(
        "main" if len(missing) > 1 else sites.path_of(missing[0]),
        f"no VJP rule for {', '.join(operators)}, and a differentiated value passes through:\n{places}"
        if len(missing) > 1
        else f"no VJP rule for {operators[0]}, and a differentiated value passes through it",
        _remedy(missing),
    )


def _remedy(missing: Sequence[ir.Node]) -> str:
    strange = [n for n in missing if n.domain in ("", "ai.onnx") and not onnx.defs.has(n.op_type)]
    if strange:
        names = ", ".join(sorted({node.op_type for node in strange}))
        return f"ONNX has no operator {names}: the exporter left it as it was. Export a model that does without it."
    return (
        f"Register a rule with @onnx_cfad.rules.registry.vjp('{missing[0].op_type}'), or leave the values out of wrt."
    )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _lacks_rule(node: ir.Node, activity: Activity) -> bool:
    if is_loop(node) or is_branch(node) or rule_for(node) is not None:
        return False
    return any(map(activity.is_active, node.outputs)) and any(map(activity.is_active, node.inputs))


def passes_derivative(node: ir.Node) -> bool:
    """Whether a derivative may pass through ``node``: its operator is not declared nondifferentiable."""
    return not isinstance(rule_for(node), NoDerivative)


def active_captures(cotangents: Cotangents, inside: Iterable[ir.Value]) -> list[ir.Value]:
    """The values with pending contributions that are not ``inside`` the region: captured ones."""
    own = set(inside)
    return [value for value in cotangents if value not in own]


def child(builder: Builder) -> Cotangents:
    """Empty cotangents in a scope below ``builder``'s."""
    return Cotangents(builder.child())
