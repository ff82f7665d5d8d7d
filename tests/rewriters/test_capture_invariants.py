"""Carries that a loop hands on unchanged are read from outside: they are neither taped nor carried backwards."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.capture_invariants import CaptureInvariantsPass
from tests.execution import run_in_onnxruntime
from tests.graph.reading import parsed
from tests.rewriters.check_pass import assert_pass_keeps_meaning

RNG = np.random.default_rng(5)
FEEDS = {"x": RNG.standard_normal(3), "w": RNG.standard_normal((3, 3))}
STEP = "u = MatMul (v, p) q = Tanh (u)"


def loop(returned: str = "v", copies: str = "", outputs: str = "(double[3] h)", head: str = "") -> str:
    """A Loop that carries the matrix w (v inside), and hands it on by way of ``copies``."""
    return f"""(double[3] x, double[3, 3] w) => {outputs} <int64 n = {{4}}, double[3, 3] c = {{1,2,3,4,5,6,7,8,9}}> {{
        {head}
        h, w_end = Loop (n, , x, w) <body = step (int64 i, bool go, double[3] p, double[3, 3] v) =>
            (bool again, double[3] q, double[3, 3] {returned}) {{ again = Identity (go) {STEP} {copies} }}>
        {"y = MatMul (w_end, h)" if "y" in outputs else ""}
    }}"""


SCAN = f"""(double[3] x, double[3, 3] w) => (double[3] h) <double[4] rows = {{1, 2, 3, 4}}> {{
    w_end, h = Scan <num_scan_inputs = 1, body = step (double[3, 3] v, double[3] p, double r) =>
        (double[3, 3] v2, double[3] q) {{ v2 = Identity (v) {STEP} }}> (w, x, rows)
}}"""
NESTED = f"""(double[3] x, double[3, 3] w) => (double[3] h) <int64 n = {{2}}> {{
    h, w_end = Loop (n, , x, w) <body = outer (int64 i, bool go, double[3] s, double[3, 3] t) =>
        (bool again, double[3] s2, double[3, 3] t2) {{
        again = Identity (go)
        s2, t2 = Loop (n, , s, t) <body = inner (int64 j, bool go2, double[3] p, double[3, 3] v) =>
            (bool again2, double[3] q, double[3, 3] v) {{ again2 = Identity (go2) {STEP} }}>
    }}>
}}"""
CAPTURED = {
    "returned": loop(),
    "copied": loop("v3", "v2 = Identity (v) v3 = Identity (v2)"),
    "read-behind": loop(outputs="(double[3] h, double[3] y)"),
    "scan": SCAN,
    "nested": NESTED,
}
STAYING = {
    "changed": loop("v2", "v2 = Add (v, v)"),
    "output": loop(outputs="(double[3] h, double[3, 3] w_end)"),
    "of-constants": loop().replace("(n, , x, w)", "(n, , x, c)"),
    "of-what-follows-from-constants": loop(head="d = Neg (c)").replace("(n, , x, w)", "(n, , x, d)"),
}


def capturing(model: ir.Model, kept: tuple[str, ...] = ()) -> CaptureInvariantsPass:
    infer_types(model)
    return CaptureInvariantsPass(kept)


def carried(model: ir.Model) -> list[int]:
    """How many carries each loop has."""
    sites = [node for node in model.graph.all_nodes() if node.op_type in ("Loop", "Scan")]
    return [len(node.outputs) for node in sites]


@pytest.mark.parametrize("name", CAPTURED)
def test_invariant_is_captured(name: str) -> None:
    model = assert_pass_keeps_meaning(capturing, CAPTURED[name], FEEDS)
    assert set(carried(model)) == {1}


@pytest.mark.parametrize("name", ["changed", "of-constants", "of-what-follows-from-constants"])
def test_what_changes_or_is_constant_stays_a_carry(name: str) -> None:
    model = assert_pass_keeps_meaning(capturing, STAYING[name], FEEDS, modifies=False)
    assert carried(model) == [2]


def test_carry_that_is_an_output_stays_and_is_read_outside() -> None:
    model = parsed(STAYING["output"])
    assert capturing(model)(model).modified
    assert carried(model) == [2]
    body = next(n for n in model.graph if n.op_type == "Loop").attributes["body"].as_graph()
    assert model.graph.inputs[1] in next(n for n in body if n.op_type == "MatMul").inputs


@pytest.mark.parametrize("kept", ["v", "v2", "w_end"])
def test_carry_whose_value_is_named_stays(kept: str) -> None:
    text = loop("v3", "v2 = Identity (v) v3 = Identity (v2)")
    model = assert_pass_keeps_meaning(lambda m: capturing(m, (kept,)), text, FEEDS, modifies=False)
    assert carried(model) == [2]


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("name", [*CAPTURED, *STAYING])
def test_matrix_is_not_taped_and_has_its_gradient(name: str, plan: str) -> None:
    """Against the loop written out; no stacked value has the shape of the matrix unless it changes."""
    text = {**CAPTURED, **STAYING}[name]
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')
    gradient = cfad.vjp(proto, outputs=["h"], wrt=["x", "w"], plan=plan, segment=2 if plan == "checkpointed" else None)
    made = [output for node in gradient.model.graph.all_nodes() for output in node.outputs]
    stacks = [v for v in made if (v.name or "").startswith("tape.") and v.shape is not None and v.shape[-2:] == (3, 3)]
    assert plan == "checkpointed" or bool(stacks) == (name == "changed")
    assert not stacks or name not in CAPTURED
    found = run_in_onnxruntime(gradient.proto(), {**FEEDS, "h_grad": np.ones(3)})
    x, w = FEEDS["x"], np.arange(1.0, 10.0).reshape(3, 3) if name.startswith("of-") else FEEDS["w"]
    w = -w if "follows" in name else w
    p, states, matrices = x, list[np.ndarray](), list[np.ndarray]()
    for k in range(4):
        states.append(p)
        matrices.append(w * 2**k if name == "changed" else w)
        p = np.tanh(matrices[-1] @ p)
    ct, of_w, after = np.ones(3), np.zeros((3, 3)), p
    for k in reversed(range(4)):
        slope = ct * (1 - after**2)
        of_w += np.outer(slope, states[k]) * (2**k if name == "changed" else 1)
        ct, after = matrices[k].T @ slope, states[k]
    np.testing.assert_allclose(found["h"], p, rtol=1e-9)
    np.testing.assert_allclose(found["x_grad"], ct, rtol=1e-9)
    np.testing.assert_allclose(found["w_grad"], 0 * of_w if name.startswith("of-") else of_w, rtol=1e-9)
