"""The path of a branch, kept in its metadata: what is made of the If knows by it which one of the primal it was.

Replays, reverse passes and copies of an If carry the mark of the If that they come from, in the written model too. So
what a profile of the primal says of a branch holds for all that a gradient makes of it.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.regions import ControlFlowGraph, is_branch

_SITE = "onnx_cfad.site"


def mark_branches(sites: ControlFlowGraph) -> None:
    """Writes its path into the metadata of every If; what stood there, of an earlier differentiation, goes."""
    for site in sites.sites():
        if is_branch(site.node):
            mark(site.node, site.path)


def mark(node: ir.Node, path: str | None) -> None:
    """Says that ``node`` is made of the branch at ``path``; None for no branch that is known."""
    if path is None:
        node.metadata_props.pop(_SITE, None)
    else:
        node.metadata_props[_SITE] = path


def marked(node: ir.Node) -> str | None:
    """The path of the branch that ``node`` is made of; None where it has no mark."""
    return node.metadata_props.get(_SITE)
