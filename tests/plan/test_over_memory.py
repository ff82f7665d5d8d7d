"""An automatic plan that takes more than its memory says so."""

from __future__ import annotations

from pathlib import Path

import onnx_cfad as cfad

HEAT = "models/heat.onnx"


def test_plan_over_its_memory_is_told_with_what_helps() -> None:
    two = cfad.plan(HEAT, memory="100KiB")
    assert two.warnings == (
        "the tapes take 307,200 bytes, more than the 102,400 of memory; --levels 3 takes less of a long loop",
    )
    three = cfad.plan(HEAT, memory="100KiB", levels=3)
    assert three.warnings == ()
    assert (three.decisions["main/Loop"].bytes or 0) <= 102_400


def test_gradient_is_told_too() -> None:
    gradient = cfad.vjp(HEAT, wrt=["u"], memory="100KiB")
    assert "more than the 102,400 of memory" in str(gradient.report)


def test_nothing_is_told_where_it_fits_or_was_asked_for() -> None:
    assert cfad.plan(HEAT, memory="1MiB").warnings == ()
    assert cfad.plan(HEAT, plan="taped").warnings == ()
    assert cfad.plan(HEAT, sites=["main/Loop=taped"]).warnings == ()


def test_memory_beside_a_plan_for_every_site_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(cfad.plan(HEAT, plan="taped").to_json())
    told = "memory has no effect: the plan is decided for every site"
    assert cfad.plan(HEAT, plan=path, memory="1KiB").warnings == (told,)
