"""Random ways to read rows in a loop, run backwards by every plan, against the derivative written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import onnx_cfad as cfad
from tests.execution import run_in_onnxruntime
from tests.rewriters.random_reads import Missing, Reads, reads

SEED = np.array([1.3, -0.4])
PLANS: list[dict[str, Any]] = [
    {"plan": "auto"},
    {"plan": "taped"},
    {"plan": "checkpointed"},
    {"plan": "checkpointed", "segment": 1},
    {"plan": "checkpointed", "segment": 2},
    {"plan": "checkpointed", "segment": 2, "levels": 3},
]
TAPED, UNROLLED = {"plan": "taped"}, {"plan": "unrolled"}
PLAIN = Reads(
    kind="gather", rows=6, axis=0, step=-1, first=4, start="constant", counter=False, narrow=False, trips=4,
    limit="constant", stop=None, symbolic=False, length=2,
)  # fmt: skip


def compare(loop: Reads, options: dict[str, Any]) -> None:
    """Compares value and gradient, or sees that the run fails as the loop does."""
    gradient = cfad.vjp(loop.model(), wrt=["x", "h0"], outputs=["h"], **options).proto()
    feeds = {**loop.feeds(), "h_grad": SEED}
    try:
        expected = loop.gradient(SEED)
    except Missing:
        if options["plan"] != "checkpointed":  # which reads rows of zeros behind the last one, in the last segment
            with pytest.raises(Exception, match="ONNXRuntimeError"):
                run_in_onnxruntime(gradient, feeds)
        return
    found = run_in_onnxruntime(gradient, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


@settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
@example(dataclasses.replace(PLAIN, kind="element", rows=3, step=-2, first=2, trips=3), TAPED)  # steps over -1
@given(reads(), st.sampled_from(PLANS))
def test_gradient_by_rows(loop: Reads, options: dict[str, Any]) -> None:
    compare(loop, options)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
@given(reads(), st.sampled_from([*PLANS, UNROLLED]))
def test_gradient_by_rows_at_length(loop: Reads, options: dict[str, Any]) -> None:
    fixed = loop.limit == "constant" and loop.stop is None
    compare(loop, TAPED if options is UNROLLED and not fixed else options)
