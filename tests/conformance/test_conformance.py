"""Every conformance model is differentiated right or refused by name, and docs/conformance.md says so."""

from __future__ import annotations

import pytest

from tests.conformance.examples import Example, examples
from tests.conformance.judgement import Judgement, Verdict, judge
from tests.conformance.page import COMMAND, PAGE, model_row, operator_row, without_figures

pytestmark = pytest.mark.slow

PARTS = 6  # so that several processes can share the work
RIGHT_WITHOUT_DIFFERENCES = {
    "Bernoulli": "a draw",
    "OneHot": "the depth is a size",
    "Resize": "the scales decide sizes",
    "Upsample": "the scales decide sizes",
}
"""The operators with models whose gradient no difference quotient tells."""


def judged(example: Example) -> Judgement:
    print(example.name)  # what a crash is reported with
    found = judge(example)
    assert found.verdict is not Verdict.WRONG, f"{found.name}: {found.reason}"
    if found.verdict is Verdict.REFUSED:
        assert found.reason.partition(":")[0], f"{found.name}: the refusal does not say where: {found.reason}"
    if found.verdict is Verdict.UNTOLD:
        assert example.subject in RIGHT_WITHOUT_DIFFERENCES, f"{found.name}: {found.reason}"
    return found


def stated() -> set[str]:
    """The lines of the page."""
    return set(without_figures(PAGE.read_text(encoding="utf-8")).splitlines())


def test_models_with_control_flow() -> None:
    found = [(example, judged(example)) for example in examples() if example.has_control_flow]
    assert len(found) >= 37
    loaded = [judgement for _, judgement in found if judgement.verdict is not Verdict.NOT_LOADED]
    assert {judgement.verdict for judgement in loaded} <= {Verdict.RIGHT, Verdict.REFUSED}
    stale = [row for row in (without_figures(model_row(*entry)) for entry in found) if row not in stated()]
    assert not stale, f"run {COMMAND}: docs/conformance.md lacks {stale}"


@pytest.mark.parametrize("part", range(PARTS))
def test_models_of_every_operator(part: int) -> None:
    lines = stated()
    subjects = sorted({example.subject for example in examples()})
    assert len(subjects) > 150
    for subject in subjects[part::PARTS]:
        found = [judged(example) for example in examples() if example.subject == subject]
        row = without_figures(operator_row(subject, found))
        assert row in lines, f"run {COMMAND}: docs/conformance.md does not say {row}"
