"""Loops whose iterations are accelerated, seen as the plain ones that they stand for.

What such a loop hands on is a mixture of iterates in place of the last one; a marked Where, whose last operand is what
the map gave, takes the mixture while the loop goes on. The mark is metadata, which outlives a file.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite

ACCELERATED = "onnx_cfad.accelerated"
"""The key in the metadata of the Where that chooses between a mixture and what the map gave."""


def plain_site(site: LoopSite) -> LoopSite:
    """``site`` with what the map gave as the exits of its carries."""
    return dataclasses.replace(
        site, carries=tuple(dataclasses.replace(carry, exit=_plain(carry.exit)) for carry in site.carries)
    )


def is_accelerated(site: LoopSite) -> bool:
    """Whether any carry hands a mixture on."""
    return any(_plain(carry.exit) is not carry.exit for carry in site.carries)


def _plain(value: ir.Value) -> ir.Value:
    node, seen = value.producer(), value
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        seen = node.inputs[0]
        node = seen.producer()
    if node is None or ACCELERATED not in node.metadata_props or node.inputs[2] is None:
        return value
    return node.inputs[2]
