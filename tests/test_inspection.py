"""What inspection says about control flow."""

from __future__ import annotations

import pytest

from onnx_cfad.errors import ModelError
from onnx_cfad.inspection import SiteInspection, ValueReport, inspect
from onnx_cfad.options import Options
from tests.onnx_text import LOOP, model


def names(values: tuple[ValueReport, ...]) -> list[str]:
    return [value.name for value in values]


def loop_of(text: str, options: Options | None = None) -> SiteInspection:
    (site,) = inspect(model(text), options).sites
    return site


def test_loop_tells_what_it_carries_reads_and_stacks() -> None:
    loop = loop_of(LOOP)
    assert (loop.kind, loop.path, loop.trips, loop.adjoint) == ("Loop", "main/loop_0", "dynamic", "taped")
    assert loop.carries == (ValueReport("s", "float32[N]", active=True),)
    assert loop.scan_outputs == (ValueReport("ys", "float32[?, ?]", active=True),)
    assert loop.captured == (ValueReport("w", "float32[N]", active=True), ValueReport("up", "bool[]", active=False))
    assert loop.nodes == 6


def test_branch_is_inside_the_loop() -> None:
    (branch,) = loop_of(LOOP).sites
    assert (branch.kind, branch.path, branch.trips) == ("If", "main/loop_0/body/if_0", "")
    assert (names(branch.outputs), names(branch.captured)) == (["next"], ["p"])


def test_scan_tells_its_inputs_and_its_length() -> None:
    scan = loop_of("""g (float[2] x, float[7,2] us) => (float[2] y) {
        y = Scan <num_scan_inputs = 1, body = body (float[2] s, float[2] u) => (float[2] t) { t = Add (s, u) }> (x, us)
    }""")
    assert (scan.kind, scan.trips, names(scan.scan_inputs)) == ("Scan", "7", ["us"])


@pytest.mark.parametrize(("wrt", "active"), [(("x",), True), (("z",), False)])
def test_activity_follows_what_is_differentiated(wrt: tuple[str, ...], active: bool) -> None:
    text = """g (float[2] x, float[2] z, int64 trips) => (float[2] y) {
        l = Loop (trips, , x) <body = body (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
            d = Identity (c)
            t = Sin (s)
        }>
        y = Add (l, z)
    }"""
    loop = loop_of(text, Options(wrt=wrt))
    assert loop.active == active
    assert loop.carries[0].active == active
    assert (loop.adjoint != "") == active


def test_every_operator_without_a_rule_is_listed() -> None:
    proto = model("g (float[2] x, float[2] z) => (float[2] y, float[2] u) { y = Sin (x) u = Cos (z) }")
    for node, name in zip(proto.graph.node, ("one", "two"), strict=True):
        node.op_type, node.domain, node.name = f"Own_{name}", "own", name
    proto.opset_import.add(domain="own", version=1)
    found = inspect(proto, Options(wrt=("x",))).without_rule
    assert [(n.operator, n.path, n.active) for n in found] == [
        ("own::Own_one", "main/Own_one 'one'", True),
        ("own::Own_two", "main/Own_two 'two'", False),
    ]


def test_model_without_floats_is_shown_with_the_reason() -> None:
    inspection = inspect(model("g (int64[2] n) => (int64[2] m) { m = Add (n, n) }"))
    assert inspection.sites == ()
    assert "no floating-point" in inspection.remarks[0]


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(ModelError, match="wrt 'q'"):
        inspect(model(LOOP), Options(wrt=("q",)))


def test_model_is_not_changed() -> None:
    proto = model(LOOP)
    before = proto.SerializeToString()
    inspect(proto)
    assert proto.SerializeToString() == before
