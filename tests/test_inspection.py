"""What inspection says about control flow."""

from __future__ import annotations

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.inspection import SiteInspection, ValueReport, inspect
from onnx_cfad.options import Options
from tests.onnx_text import LOOP, model
from tests.oracle import run_ort


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


MASKED = """g (float[N] x, float[N] d) => (float[N] y, float[N] z) <float zero = {0.0}, float half = {0.5}> {
    c = Greater (x, zero)
    s = Sqrt (x)
    y = Where (c, s, x)
    e = Div (x, half)
    z = Div (e, d)
}"""


@pytest.mark.parametrize(
    ("branch", "slope"),
    [
        ("s = Sqrt (x)", 0.25), ("s = Log (x)", 0.25), ("s = Reciprocal (x)", -0.0625), ("s = Pow (x, half)", 0.25),
        ("r = Sqrt (x) s = Mul (r, x)", 3.0), ("r = Log (x) q = Exp (r) s = Neg (q)", -1.0),
        ("r = Div (half, x) s = Sqrt (r)", -0.04419417), ("i = Neg (x) r = Sqrt (x) s = Div (i, r)", -0.25),
    ],
)  # fmt: skip
def test_what_a_mask_cut_off_contributes_nothing(branch: str, slope: float) -> None:
    """The derivative of where(x > 0, f(x), x): 1 at 0 and below, whatever f does there; that of f at 4."""
    text = (
        MASKED.replace("float[", "double[")
        .replace("<float zero", "<double zero")
        .replace(", float half", ", double half")
    )
    text = text.replace(" d) =>", " d) =>").replace("s = Sqrt (x)", branch)
    found = run_ort(
        cfad.vjp(model(text), wrt=["x"], outputs=["y"]).proto(),
        {"x": np.array([0.0, 4.0, -1.0]), "d": np.ones(3), "y_grad": np.ones(3)},
    )
    np.testing.assert_allclose(found["x_grad"], [1.0, slope, 1.0], rtol=1e-6)
