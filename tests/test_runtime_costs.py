"""What docs/runtime-notes.md says of speed and memory: what ONNX Runtime does not do by itself, emitted models do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnx_cfad as cfad
from onnx_cfad.runtime import Session
from tests.emitted import POWER, gradient, nodes_of, subgraphs
from tests.onnx_text import model
from tests.oracle import run_ort

NESTED = """m (float[4,64] x, int64 n, int64 k) => (float[4,64] y) {
    y = Loop (k, , x) <body = o (int64 j, bool f, float[4,64] s) => (bool c, float[4,64] t) {
        c = Identity (f)
        t = Loop (n, , s) <body = b (int64 i, bool g, float[4,64] h) => (bool a, float[4,64] next)
            { a = Identity (g)  p = MatMul (h, w)  next = Tanh (p) }>
    }>
}"""


def nested(depth: int) -> onnx.ModelProto:
    """The nest with a weight of 16 KiB, or its inner loop alone."""
    text = NESTED
    if depth == 1:
        text = """m (float[4,64] x, int64 n, int64 k) => (float[4,64] y) {
            y = Loop (n, , x) <body = b (int64 i, bool g, float[4,64] h) => (bool a, float[4,64] next)
                { a = Identity (g)  p = MatMul (h, w)  next = Tanh (p) }>
        }"""
    proto = model(text)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


@pytest.mark.parametrize(("depth", "places"), [(1, {"main"}), (2, {"main", "inner"})])
def test_small_weight_from_two_levels_up_is_declared_where_it_is_read(depth: int, places: set[str]) -> None:
    proto = cfad.vjp(nested(depth), wrt=["x"], plan="taped").proto()
    found: set[str] = set()
    for graph, node in nodes_of(proto.graph):
        if node.op_type == "MatMul":
            own = {tensor.name for tensor in graph.initializer}
            found.add("inner" if node.input[1] in own else "main")
    feeds: dict[str, Any] = {"x": np.full((4, 64), 0.1, np.float32), "n": np.asarray(3), "k": np.asarray(2)}
    primal, seed = run_ort(nested(depth), feeds)["y"], np.ones((4, 64), np.float32)
    np.testing.assert_allclose(run_ort(proto, {**feeds, "y_grad": seed})["y"], primal, rtol=1e-5, atol=1e-7)
    assert found == places - ({"main"} if depth == 2 else set())


def test_what_does_not_change_in_a_loop_is_computed_in_front_of_it() -> None:
    text = """m (double[3,3] x, double[3,3] u, double[3] h) => (double[3] y) <int64 n = {6}> {
        y = Loop (n, , h) <body = b (int64 i, bool g, double[3] s) => (bool a, double[3] next)
            { a = Identity (g)  p = MatMul (x, u)  q = MatMul (p, s)  next = Sin (q) }>
    }"""
    proto = gradient(text)
    assert next(node.output[0] for node in proto.graph.node if node.op_type == "MatMul") == "p"
    inside = [node for graph, node in nodes_of(proto.graph) if graph is not proto.graph]
    assert all("p" not in node.output for node in inside)


def test_stacked_output_that_nobody_reads_is_removed() -> None:
    text = """m (double[3] x) => (double[3] y) <int64 n = {6}> {
        y, unread = Loop (n, , x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] next, double[3] row)
            { a = Identity (g)  next = Sin (h)  row = Exp (h) }>
    }"""
    assert "Exp" not in [node.op_type for _, node in nodes_of(gradient(text).graph)]


def test_session_plans_no_memory_pattern() -> None:
    options = Session(model(POWER), threads=1)._session.get_session_options()
    assert options.enable_mem_pattern is False


def test_tape_is_stacked_by_a_scan_where_the_trip_count_is_fixed() -> None:
    """A stacked Loop output costs twice its bytes."""
    text = """m (double[3] x) => (double[3] y) <int64 n = {6}> {
        y = Loop (n, , x) <body = b (int64 i, bool g, double[3] h) => (bool a, double[3] next)
            { a = Identity (g)  next = Sin (h) }>
    }"""
    kinds = [node.op_type for node in gradient(text).graph.node if subgraphs(node)]
    assert kinds == ["Scan", "Scan"]
