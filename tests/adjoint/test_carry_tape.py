"""A tape that keeps the carries alone gives the same gradients, and is as large as the carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.adjoint.taped import Taped
from onnx_cfad.graph.regions import control_flow, is_loop
from onnx_cfad.model import load
from onnx_cfad.plans.plan import Decision
from tests.adjoint.agreement import all_makers, seeds
from tests.oracle import check_emitted, run_ort


@pytest.mark.parametrize("name", sorted(all_makers()))
def test_agrees_with_the_tape_of_residuals(name: str) -> None:
    example = all_makers()[name]()
    asked: dict[str, Any] = {"wrt": list(example.wrt), "outputs": example.outputs}
    loops = [site.path for site in control_flow(load(example.model)).sites() if is_loop(site.node)]
    sites = [f"{path}=taped(keep=carry)" for path in loops]
    found = cfad.vjp(example.model, sites=sites, **asked).proto()
    check_emitted(found)
    feeds = {**example.feeds, **seeds(example)}
    expected = run_ort(cfad.vjp(example.model, plan="taped", **asked).proto(), feeds)
    for key, value in run_ort(found, feeds).items():
        if "random" not in name and not isinstance(value, list):
            np.testing.assert_allclose(value, expected[key], rtol=1e-8, atol=1e-10, err_msg=key)


CHAIN = "a = Tanh (h)  b = Sigmoid (a)  d = Exp (b)  e = Tanh (d)  f = Sin (e)  g = Sub (f, h)  next = Add (h, g)"
PRODUCT = "a = MatMul (h, w)  b = Tanh (a)  d = Sigmoid (b)  e = Exp (d)  f = Tanh (e)  g = Sin (f)  next = Sub (g, h)"


def loop(body: str, trips: int = 2000, width: int = 64) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        chain (float[1, {width}] x, float[{width}, {width}] w) => (float[1, {width}] y)
        <int64 trips = {{{trips}}}> {{
        y = Loop (trips, , x) <body = body (int64 i, bool going, float[1, {width}] h)
            => (bool again, float[1, {width}] next) {{ again = Identity (going)  {body} }}>
    }}"""
    return onnx.parser.parse_model(text)


def planned(model: onnx.ModelProto, **options: Any) -> Decision:
    """The decision for the only loop of a model."""
    (decision,) = cfad.plan(model, **options).decisions.values()
    return decision


def stacked(gradient: cfad.Gradient) -> int:
    """Bytes of floating-point values that the forward loop stacks for each iteration."""
    node = next(n for n in gradient.model.graph if n.op_type in {"Loop", "Scan"})
    tapes = [v for v in node.outputs if (v.name or "").startswith("tape.")]
    assert all(v.shape is not None and v.dtype is not None for v in tapes)
    return sum(4 * int(np.prod(v.shape.numpy()[1:])) for v in tapes if v.shape is not None)


def test_what_is_cheap_to_compute_again_is_not_taped() -> None:
    decision = planned(loop(CHAIN))
    assert decision.adjoint == Taped(keep="carry")
    assert decision.bytes == 2000 * 64 * 4
    assert stacked(cfad.vjp(loop(CHAIN), wrt=["x"])) == 64 * 4
    assert stacked(cfad.vjp(loop(CHAIN), wrt=["x"], plan="taped")) == 4 * 64 * 4


def test_products_are_dear_so_residuals_are_taped() -> None:
    assert planned(loop(PRODUCT)).adjoint == Taped()


def test_a_small_tape_keeps_residuals() -> None:
    assert planned(loop(CHAIN, trips=20)).adjoint == Taped()


def test_the_memory_is_asked_for_what_is_kept() -> None:
    model = loop(CHAIN)
    carries = 2000 * 64 * 4
    assert carries < 600_000 < (planned(model, plan="taped").bytes or 0)
    assert planned(model, memory=600_000).adjoint == Taped(keep="carry")
    assert isinstance(planned(model, memory=400_000).adjoint, Checkpointed)


def test_keep_is_carry_or_nothing() -> None:
    with pytest.raises(cfad.PlanError, match="expected carry"):
        Taped(keep="products")
