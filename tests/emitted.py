"""Models as they are emitted: gradients by plan, and every node of one, in whatever subgraph."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, NodeProto

import onnx_cfad as cfad
from tests.onnx_text import model

MODELS = sorted((pathlib.Path(__file__).parents[1] / "models").glob("*.onnx"))
PLANS: dict[str, dict[str, Any]] = {"taped": {"plan": "taped"}, "checkpointed": {"plan": "checkpointed", "segment": 3}}
X = np.asarray([1.0, 2.0, -3.0])
EVERY_PLAN = pytest.mark.parametrize("plan", PLANS)
OPTIMISED = pytest.mark.parametrize("optimise", [False, True])

POWER = """m (double[3] x, double[3] w, int64 trips) => (double[3] y, double[K,3] rows) {
    y, rows = Loop (trips, , x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] n, double[3] r)
        { a = Identity (g)  n = Mul (h, w)  r = Mul (n, n) }>
}"""
"""A state that is multiplied by w in every iteration, and the squares of all states."""


def nodes_of(graph: GraphProto) -> Iterator[tuple[GraphProto, NodeProto]]:
    """Every node with its graph, those in subgraphs included."""
    for node in graph.node:
        yield graph, node
        for subgraph in subgraphs(node):
            yield from nodes_of(subgraph)


def subgraphs(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def gradient(text: str, *, plan: str = "taped", **options: Any) -> onnx.ModelProto:
    return cfad.vjp(model(text), **PLANS[plan], **options).proto()


def emitted(path: pathlib.Path, plan: str) -> onnx.ModelProto:
    return cfad.vjp(path, **PLANS[plan]).proto()
