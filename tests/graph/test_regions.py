"""The tree of control-flow sites: carries, captured values, slices and paths."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnx_cfad.graph.regions import (
    branch_site,
    captured_by,
    control_flow,
    is_branch,
    is_loop,
    label,
    loop_site,
)
from tests.graph.reading import nodes, parsed

NEST = """(float[3] x, float[3] w, float[3] v, bool p) => (float[3] y) <int64 two = {2}> {
    m = Sin (w)
    y = Loop (two, , x) <body = one (int64 i, bool c, float[3] h) => (bool d, float[3] g) {
        d = Identity (c)
        n = Mul (h, v)
        g = Loop (two, , n) <body = inner (int64 j, bool e, float[3] f) => (bool k, float[3] l) {
            k = Identity (e)
            l = If (p) <
                then_branch = t () => (float[3] a) { q = Mul (f, m)  a = Mul (q, h) },
                else_branch = u () => (float[3] b) { b = Mul (f, v) }>
        }>
    }>
}"""


def names(found: list[ir.Value]) -> list[str | None]:
    return [value.name for value in found]


def test_captured_values_come_in_order_of_first_use_from_every_depth() -> None:
    outer, inner = nodes(parsed(NEST), "Loop")
    assert names(captured_by(outer)) == ["v", "two", "p", "m"]
    assert names(captured_by(inner)) == ["p", "m", "h", "v"]


def test_own_inputs_of_a_node_are_not_captured_by_it() -> None:
    outer, _ = nodes(parsed(NEST), "Loop")
    assert "x" not in names(captured_by(outer))


def test_captured_initializer_counts_as_captured() -> None:
    outer, _ = nodes(parsed(NEST), "Loop")
    assert "two" in names(captured_by(outer))


def test_sites_come_outer_before_inner_with_paths() -> None:
    sites = control_flow(parsed(NEST)).sites()
    assert [site.path for site in sites] == [
        "main/loop_0",
        "main/loop_0/body/loop_0",
        "main/loop_0/body/loop_0/body/if_0",
    ]
    assert [region.path for region in sites[2].regions] == [
        "main/loop_0/body/loop_0/body/if_0/then",
        "main/loop_0/body/loop_0/body/if_0/else",
    ]


def test_path_uses_the_name_of_the_node() -> None:
    model = parsed(NEST)
    nodes(model, "Loop")[0].name = "/decoder/Loop"
    assert control_flow(model).sites()[0].path == "main/decoder.Loop"


def test_repeated_node_names_get_different_paths() -> None:
    model = parsed("""(float[3] x, bool p) => (float[3] y) {
        m = If (p) <then_branch = a () => (float[3] b) { b = Sin (x) },
            else_branch = c () => (float[3] d) { d = Tanh (x) }>
        k = If (p) <then_branch = a () => (float[3] b) { b = Sin (m) },
            else_branch = c () => (float[3] d) { d = Tanh (m) }>
        y = If (p) <then_branch = a () => (float[3] b) { b = Sin (k) },
            else_branch = c () => (float[3] d) { d = Tanh (k) }>
    }""")
    for node in nodes(model, "If"):
        node.name = "cond"
    paths = [site.path for site in control_flow(model).sites()]
    assert paths[0] == "main/cond"
    assert len(set(paths)) == 3


def test_paths_are_the_same_every_time() -> None:
    assert [s.path for s in control_flow(parsed(NEST)).sites()] == [s.path for s in control_flow(parsed(NEST)).sites()]


def test_path_of_a_plain_node_names_region_and_operator() -> None:
    model = parsed(NEST)
    node = next(n for n in nodes(model, "Mul") if n.outputs[0].name == "q")
    assert control_flow(model).path_of(node) == "main/loop_0/body/loop_0/body/if_0/then/Mul"
    node.name = "scale"
    assert control_flow(model).path_of(node).endswith("/then/Mul 'scale'")
    assert label(node) == "Mul 'scale'"


def test_loop_carries_join_outside_and_inside() -> None:
    model = parsed("""(float[3] x, int64 n, bool s, float[3] w) => (float[3] y, float[3] z, float[a, 3] r) {
        y, z, r = Loop (n, s, x, w) <body = b (int64 i, bool c, float[3] h, float[3] k)
            => (bool d, float[3] g, float[3] l, float[3] o) {
            d = Identity (c)
            g = Sin (h)
            l = Mul (g, k)
            o = Tanh (k)
        }>
    }""")
    site = loop_site(nodes(model, "Loop")[0])
    joined = [names([c.initial, c.entry, c.exit, c.final]) for c in site.carries]
    assert joined == [["x", "h", "g", "y"], ["w", "k", "l", "z"]]
    assert [names([o.element, o.stacked]) for o in site.outputs] == [["o", "r"]]
    assert not site.is_scan
    assert [v.name if v is not None else None for v in (site.index, site.predicate, site.proceed)] == ["i", "c", "d"]
    assert [v.name if v is not None else None for v in (site.limit, site.start)] == ["n", "s"]


def test_loop_without_limit_and_start_has_neither() -> None:
    model = parsed("""(float[3] x, int64 last) => (float[3] y) {
        y = Loop (, , x) <body = b (int64 i, bool c, float[3] h)
            => (bool d, float[3] g) { d = Less (i, last)  g = Sin (h) }>
    }""")
    site = loop_site(nodes(model, "Loop")[0])
    assert site.limit is None
    assert site.start is None


def test_scan_parts_with_axes_and_directions() -> None:
    model = parsed("""(float[3] h0, float[3, 4] us, float[4, 3] vs) => (float[3] h, float[3, 4] ps, float[4, 3] qs) {
        h, ps, qs = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [0, 1],
            scan_output_axes = [1, 0], scan_output_directions = [1, 0],
            body = b (float[3] s, float[3] u, float[3] v) => (float[3] t, float[3] p, float[3] q) {
                t = Mul (s, u)
                p = Mul (t, v)
                q = Sin (p)
            }> (h0, us, vs)
    }""")
    site = loop_site(nodes(model, "Scan")[0])
    assert site.is_scan
    assert [names([c.initial, c.entry, c.exit, c.final]) for c in site.carries] == [["h0", "s", "t", "h"]]
    assert [(s.source.name, s.slice.name, s.axis, s.reverse) for s in site.inputs] == [
        ("us", "u", -1, False),
        ("vs", "v", 0, True),
    ]
    assert [(o.element.name, o.stacked.name, o.axis, o.reverse) for o in site.outputs] == [
        ("p", "ps", 1, True),
        ("q", "qs", 0, False),
    ]


def test_scan_without_attributes_reads_forwards_along_the_first_axis() -> None:
    model = parsed("""(float[4, 3] xs) => (float[4, 3] ys) {
        ys = Scan <num_scan_inputs = 1, body = b (float[3] x) => (float[3] y) { y = Sin (x) }> (xs)
    }""")
    site = loop_site(nodes(model, "Scan")[0])
    assert [(s.axis, s.reverse) for s in site.inputs] == [(0, False)]
    assert [(o.axis, o.reverse) for o in site.outputs] == [(0, False)]
    assert site.carries == ()


def test_branch_site_tells_then_from_else() -> None:
    model = parsed("""(float[3] x, bool p) => (float[3] y) {
        y = If (p) <else_branch = c () => (float[3] d) { d = Tanh (x) },
            then_branch = a () => (float[3] b) { b = Sin (x) }>
    }""")
    site = branch_site(nodes(model, "If")[0])
    assert [branch.outputs[0].name for branch in site.branches] == ["b", "d"]
    assert site.predicate.name == "p"


@pytest.mark.parametrize(("domain", "expected"), [("", True), ("ai.onnx", True), ("custom", False)])
def test_only_the_default_domain_has_control_flow(domain: str, expected: bool) -> None:
    assert is_branch(ir.Node(domain, "If", [])) is expected
    assert is_loop(ir.Node(domain, "Loop", [])) is expected
    assert is_loop(ir.Node(domain, "Scan", [])) is expected
