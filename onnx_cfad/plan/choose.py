"""The automatic choice: how each control-flow site is run backwards. Every such decision is made in this file."""

from __future__ import annotations

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch


def choose_adjoints(sites: ControlFlowGraph) -> dict[str, Adjoint]:
    """The adjoint of every Loop, Scan and If, by path: full tape for loops, the recorded predicate for branches."""
    return {site.path: Routed() if is_branch(site.node) else Taped() for site in sites.sites()}
