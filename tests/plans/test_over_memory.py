"""An automatic plan that takes more than its memory says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.checkpointed import Checkpointed
from tests.oracle import run_ort

HEAT = "models/heat.onnx"


def test_plan_over_its_memory_is_told_with_what_helps() -> None:
    two = cfad.plan(HEAT, memory="100KiB", levels=2)
    assert two.warnings == (
        "the tapes take 307,200 bytes, more than the 102,400 of memory; --levels 3 takes less of a long loop",
    )


@pytest.mark.parametrize(("memory", "levels"), [("300KiB", 2), ("280KiB", 3), ("100KiB", 3), ("84KiB", 4)])
def test_automatic_plan_has_as_few_levels_as_fit(memory: str, levels: int) -> None:
    plan = cfad.plan(HEAT, memory=memory)
    (decision,) = plan.decisions.values()
    assert isinstance(decision.adjoint, Checkpointed)
    assert decision.adjoint.levels == levels
    assert decision.bytes is not None
    assert decision.bytes <= int(memory.removesuffix("KiB")) << 10
    assert plan.warnings == ()


def test_what_no_number_of_levels_meets_is_told() -> None:
    plan = cfad.plan(HEAT, memory="4KiB")
    (used,) = (decision.bytes for decision in plan.decisions.values())
    assert plan.warnings == (f"the tapes take {used:,} bytes, more than the 4,096 of memory",)


def test_gradient_is_told_too() -> None:
    gradient = cfad.vjp(HEAT, wrt=["u"], memory="4KiB")
    assert "more than the 4,096 of memory" in str(gradient.report)


NESTED = """<ir_version: 10, opset_import: ["" : 21]>
nested (float[256] x) => (float[256] y) {
    outer = Constant<value_int=100>()
    y = Loop (outer, , x) <body = step (int64 i, bool c, float[256] a) => (bool d, float[256] b) {
        d = Identity (c)
        inner = Constant<value_int=100>()
        b = Loop (inner, , a) <body = turn (int64 j, bool e, float[256] p) => (bool f, float[256] q) {
            f = Identity (e)
            q = Sin (p)
        }>
    }>
}"""


@pytest.mark.parametrize("memory", [1 << 20, 300 << 10, 100 << 10, 60 << 10])
def test_nested_loops_keep_to_the_memory_together(memory: int) -> None:
    model = onnx.parser.parse_model(NESTED)
    plan = cfad.plan(model, memory=memory)
    outer, inner = plan.decisions.values()
    assert isinstance(outer.adjoint, Checkpointed)
    assert outer.bytes is not None
    assert inner.bytes is not None
    assert inner.bytes * outer.adjoint.segment < outer.bytes <= memory
    assert plan.warnings == ()
    x = np.linspace(0.1, 3.0, 256, dtype=np.float32)
    feeds = {"x": x, "y_grad": np.cos(x)}
    found = run_ort(cfad.vjp(model, memory=memory).proto(), feeds)["x_grad"]
    expected = run_ort(cfad.vjp(model, plan="taped").proto(), feeds)["x_grad"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_nothing_is_told_where_it_fits_or_was_asked_for() -> None:
    assert cfad.plan(HEAT, memory="1MiB").warnings == ()
    assert cfad.plan(HEAT, plan="taped").warnings == ()
    assert cfad.plan(HEAT, sites=["main/Loop=taped"]).warnings == ()


@pytest.mark.parametrize("text", [{"plan": "checkpointed", "segment": 10_001}, {"segment": 10_001, "memory": "1MiB"}])
def test_segment_that_holds_the_whole_loop_is_told(text: dict[str, Any]) -> None:
    told = "main/Loop: a segment of 10,001 iterations holds all 10,000 of the loop: nothing is saved"
    assert told in cfad.plan(HEAT, **text).warnings
    assert cfad.plan(HEAT, plan="checkpointed", segment=10_000).warnings == ()


@pytest.mark.parametrize("name", ["segment", "levels", "trips"])
def test_settings_are_whole_numbers(name: str) -> None:
    with pytest.raises(cfad.PlanError, match=f"{name} 2.5: expected a whole number from"):
        cfad.plan(HEAT, plan="checkpointed", **{name: 2.5})  # pyright: ignore[reportArgumentType]


def test_memory_beside_a_plan_for_every_site_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(cfad.plan(HEAT, plan="taped").to_json())
    told = "memory has no effect: the plan is decided for every site"
    assert cfad.plan(HEAT, plan=path, memory="1KiB").warnings == (told,)
