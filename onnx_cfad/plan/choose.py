"""The automatic choice: how each control-flow site is run backwards. Every such decision is made in this file."""

from __future__ import annotations

from onnx_cfad.adjoint.base import Adjoint
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.routed import Routed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.graph.regions import ControlFlowGraph, is_branch, is_loop
from onnx_cfad.options import Options


def choose_adjoints(sites: ControlFlowGraph, options: Options) -> dict[str, Adjoint]:
    """The adjoint of every Loop, Scan and If, by path."""
    found: dict[str, Adjoint] = {}
    for site in sites.sites():
        if is_branch(site.node):
            found[site.path] = Routed()
        elif is_loop(site.node):
            checkpointed = options.plan == "checkpointed"
            found[site.path] = Checkpointed(options.segment or 16, options.levels) if checkpointed else Taped()
    return found
