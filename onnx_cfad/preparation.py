"""Control-flow sites rewritten as their adjoints need them, before anything is differentiated."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.adjoint.base import Adjoint, Prepared
from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.regions import ControlFlowGraph
from onnx_cfad.graph.types import Types
from onnx_cfad.names import ADJOINT, Namer
from onnx_cfad.plans.plan import Plan, written


def prepare_sites(model: ir.Model, types: Types, sites: ControlFlowGraph, adjoints: Plan) -> Prepared:
    """Rewrites every site for its adjoint, inner ones first.

    Raises:
        PlanError: A site cannot be run backwards in the way that was planned.
    """
    builder = Builder(Namer.of_model(model), model.opset_imports[""])
    known = [site for site in reversed(sites.sites()) if site.path in adjoints]
    prepared: list[Prepared] = []
    for site in known:
        mark_implicit(site.node, adjoints[site.path])
        with Blamed(site.node, "it cannot be prepared to be run backwards", path=site.path):
            prepared.append(adjoints[site.path].prepare(site.node, types, builder))
    return Prepared.merged(prepared)


def mark_implicit(node: ir.Node, adjoint: Adjoint) -> None:
    """Writes an implicit adjoint into the loop's metadata: further derivatives of it are implicit too."""
    if isinstance(adjoint, Implicit):
        node.metadata_props[ADJOINT] = written(adjoint)
