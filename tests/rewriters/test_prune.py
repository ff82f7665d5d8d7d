"""Dead nodes, dead outputs and dead carries go; what is read, or kept by name, stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.rewriters.prune import PruneDeadValuesPass
from tests.graph.reading import nodes, parsed
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

X = np.asarray([0.3, -0.7, 1.1])
W = np.asarray([0.9, 1.4, -0.6])


def prune(text: str, feeds: dict[str, Any], *, modifies: bool = True) -> ir.Model:
    return assert_pass_keeps_meaning(lambda _: PruneDeadValuesPass(), text, feeds, modifies=modifies)


def test_nothing_dead_changes_nothing() -> None:
    prune("(double[3] x) => (double[3] y) { s = Sin (x)  y = Mul (s, x) }", {"x": X}, modifies=False)


def test_chain_of_dead_nodes_goes() -> None:
    model = prune("(double[3] x) => (double[3] y) { s = Sin (x)  t = Mul (s, x)  u = Sin (t)  y = Tanh (x) }", {"x": X})
    assert operators(model) == ["Tanh"]


def test_kept_nodes_stay_although_nothing_reads_them() -> None:
    model = parsed("(double[3] x) => (double[3] y) { s = Sin (x)  t = Tanh (x)  y = Neg (x) }")
    kept = frozenset(node for node in model.graph if node.op_type == "Sin")
    assert PruneDeadValuesPass(kept)(model).modified
    assert operators(model) == ["Sin", "Neg"]


def test_primal_initializers_stay() -> None:
    model = prune("(double[3] x) => (double[3] y) <double[3] w = {1, 2, 3}> { s = Mul (x, w)  y = Tanh (x) }", {"x": X})
    assert "w" in model.graph.initializers


BRANCH = """(double[3] x, double[3] w, bool p) => (double[3] y) {{
    {outs} = If (p) <
        then_branch = l () => (double[3] a, double[3] b) {{ a = Sin (x)  b = Mul (a, w) }},
        else_branch = r () => (double[3] c, double[3] d) {{ d = Mul (x, w)  c = Tanh (x) }}>
}}"""


@pytest.mark.parametrize("taken", [True, False])
def test_dead_branch_output_goes_with_what_only_it_needs(taken: bool) -> None:
    model = prune(BRANCH.format(outs="y, unread"), {"x": X, "w": W, "p": taken})
    (node,) = nodes(model, "If")
    assert [len(node.attributes[key].as_graph().outputs) for key in ("then_branch", "else_branch")] == [1, 1]
    assert "Mul" not in operators(model)


def test_first_of_two_branch_outputs_goes() -> None:
    model = prune(BRANCH.format(outs="unread, y"), {"x": X, "w": W, "p": True})
    assert sorted(operators(model)) == ["If", "Mul", "Mul", "Sin"], "the second output needs the first one's value"


LOOP = """(double[3] x, double[3] w, int64 n) => ({heads}) {{
    {outs} = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
        => (bool d, double[3] g, double[3] l, double[3] r, double[3] s) {{
        d = Identity (c)
        g = Sin (h)
        l = Tanh (k)
        r = Mul (g, h)
        s = Mul (l, h)
    }}>
}}"""
FEEDS = {"x": X, "w": W, "n": 3}


def test_dead_stacked_output_goes() -> None:
    model = prune(LOOP.format(heads="double[3] y, double[3] z, double[a, 3] rs", outs="y, z, rs, unread"), FEEDS)
    body = nodes(model, "Loop")[0].attributes["body"].as_graph()
    assert len(body.outputs) == 4
    assert operators(model).count("Mul") == 1


def test_carry_that_only_feeds_itself_goes() -> None:
    model = prune(LOOP.format(heads="double[3] y, double[a, 3] rs", outs="y, unread, rs, unread2"), FEEDS)
    (node,) = nodes(model, "Loop")
    assert len(node.inputs) == 3
    assert "Tanh" not in operators(model)


def test_dead_carry_that_another_value_reads_stays() -> None:
    model = prune(LOOP.format(heads="double[3] y, double[a, 3] ss", outs="y, unread, unread2, ss"), FEEDS)
    assert len(nodes(model, "Loop")[0].inputs) == 4
    assert "Tanh" in operators(model)


def test_carry_whose_entry_is_stacked_stays() -> None:
    """The entry is read by no node, and yet it is what the loop gives out."""
    text = """(double[3] x, double[3] w, int64 n) => (double[3] z, double[a, 3] rows) {
        unread, z, rows = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
            => (bool d, double[3] h, double[3] l, double[3] h) {
            d = Identity (c)
            l = Tanh (k)
        }>
    }"""
    prune(text, FEEDS, modifies=False)


def test_carry_whose_entry_is_stacked_and_updated_stays() -> None:
    text = """(double[3] x, double[3] w, int64 n) => (double[3] z, double[a, 3] rows) {
        unread, z, rows = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
            => (bool d, double[3] g, double[3] l, double[3] h) {
            d = Identity (c)
            g = Sin (h)
            l = Tanh (k)
        }>
    }"""
    prune(text, FEEDS, modifies=False)


def test_carry_whose_entry_is_the_exit_of_another_stays() -> None:
    text = """(double[3] x, double[3] w, int64 n) => (double[3] z) {
        unread, z = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
            => (bool d, double[3] g, double[3] h) {
            d = Identity (c)
            g = Sin (h)
        }>
    }"""
    prune(text, FEEDS, modifies=False)


def test_carry_read_inside_a_branch_of_the_body_stays() -> None:
    text = """(double[3] x, double[3] w, int64 n, bool p) => (double[3] z) {
        unread, z = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
            => (bool d, double[3] g, double[3] l) {
            d = Identity (c)
            g = Sin (h)
            l = If (p) <
                then_branch = t () => (double[3] a) { a = Mul (h, k) },
                else_branch = e () => (double[3] b) { b = Tanh (k) }>
        }>
    }"""
    prune(text, {**FEEDS, "p": True}, modifies=False)


def test_random_update_of_a_dead_carry_stays() -> None:
    """A draw counts as a reader: removing it would shift the draws that follow."""
    text = """(double[3] x, double[3] w, int64 n) => (double[3] z) {
        unread, z = Loop (n, , x, w) <body = b (int64 i, bool c, double[3] h, double[3] k)
            => (bool d, double[3] g, double[3] l) {
            d = Identity (c)
            g = RandomNormalLike <seed = 1.0> (h)
            l = Tanh (k)
        }>
    }"""
    prune(text, FEEDS, modifies=False)


def test_dead_output_of_a_scan_goes_with_its_axis_and_direction() -> None:
    text = """(double[4, 3] xs) => (double[3, 4] ps, double[4, 3] rs) {
        ps, unread, rs = Scan <num_scan_inputs = 1, scan_output_axes = [1, 0, 0], scan_output_directions = [0, 0, 1],
            body = b (double[3] x) => (double[3] p, double[3] q, double[3] r) {
                p = Sin (x)
                q = Tanh (x)
                r = Mul (x, x)
            }> (xs)
    }"""
    model = prune(text, {"xs": np.arange(12.0).reshape(4, 3)})
    (node,) = nodes(model, "Scan")
    assert list(node.attributes["scan_output_axes"].as_ints()) == [1, 0]
    assert list(node.attributes["scan_output_directions"].as_ints()) == [0, 1]


def test_dead_values_at_depth_go() -> None:
    text = """(double[3] x, int64 n, bool p) => (double[3] y) {
        y = Loop (n, , x) <body = b (int64 i, bool c, double[3] h) => (bool d, double[3] g) {
            d = Identity (c)
            g, unread = If (p) <
                then_branch = l () => (double[3] a, double[3] o) { a = Sin (h)  o = Mul (h, h) },
                else_branch = r () => (double[3] e, double[3] q) { e = Tanh (h)  q = Mul (h, h) }>
        }>
    }"""
    model = prune(text, {"x": X, "n": 3, "p": True})
    assert "Mul" not in operators(model)


def test_slices_that_a_body_does_not_read_go_but_one_sets_the_trip_count() -> None:
    text = """(double[3] x, double[4, 3] a, double[3, 4] b, double[4, 3] c) => (double[3] y) {{
        y = Scan <num_scan_inputs = 3, scan_input_axes = [0, 1, 0], scan_input_directions = [0, 1, 1],
            body = step (double[3] h, double[3] p, double[3] q, double[3] r) => (double[3] next) {{
            next = {} }}> (x, a, b, c)
    }}"""
    feeds = {"x": X, "a": np.arange(12.0).reshape(4, 3), "b": np.arange(12.0).reshape(3, 4)}
    feeds["c"] = np.cos(feeds["a"])
    for formula, left in (("Mul (h, r)", ["c"]), ("Mul (h, q)", ["b"]), ("Sin (h)", ["a"])):
        model = prune(text.format(formula), feeds)
        (node,) = nodes(model, "Scan")
        assert [value.name for value in node.inputs[1:] if value is not None] == left


def test_dead_branch_in_a_body_goes_with_the_carry_that_it_alone_reads() -> None:
    """The counter's last value is read by the dead If alone, as in the copy of a loop that runs a given time."""
    text = """(double[3] x, int64 n) => (double[3] y) {
        zero = Constant <value = int64 {0}> ()
        y, k = Loop (n, , x, zero) <body = step (int64 i, bool go, double[3] h, int64 c) =>
            (bool on, double[3] next, int64 more) {
            on = Identity (go)
            one = Constant <value = int64 {1}> ()
            more = Add (c, one)
            p = Greater (more, one)
            unread = If (p) <
                then_branch = l () => (bool a) { a = Less (more, i) },
                else_branch = r () => (bool b) { b = Greater (more, c) }
            >
            next = Sin (h)
        }>
    }"""
    model = prune(text, {"x": X, "n": np.asarray(3)})
    (node,) = nodes(model, "Loop")
    assert len(node.inputs) == 3
    assert "Add" not in operators(model)
