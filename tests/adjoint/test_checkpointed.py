"""Every corpus model gives the same gradients from checkpoints as from a full tape, for several segments and levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_cfad.adjoint.checkpointed import Checkpointed
from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.errors import PlanError, UnsupportedOp
from onnx_cfad.model import load
from onnx_cfad.options import Options
from tests.adjoint.agreement import all_makers, seeds
from tests.corpus import Example
from tests.oracle import check_emitted, run_ort

SETTINGS = ((0, 2), (1, 2), (2, 2), (3, 2), (2, 3))
REFUSED = {  # three levels, a trip count that only the run knows, and a tape that is a sequence already
    ("random_draw_in_if_in_body", 2, 3),
}

WITHOUT_CHECKPOINTS = {"optional_carried"}  # a carry that may be absent cannot be kept for a replay


def gradient(example: Example, plan: str, segment: int | None = None, levels: int | None = None) -> Gradient:
    """The example differentiated by one adjoint for all its loops."""
    outputs = None if example.outputs is None else tuple(example.outputs)
    options = Options(wrt=tuple(example.wrt), outputs=outputs, plan=plan, segment=segment, levels=levels)
    return differentiate(load(example.model), options)


@pytest.mark.parametrize(("segment", "levels"), SETTINGS)
@pytest.mark.parametrize("name", sorted(all_makers()))
def test_agrees_with_the_full_tape(name: str, segment: int, levels: int) -> None:
    if name == "loop_long":
        pytest.skip("its segments of one to three iterations say nothing new")
    example = all_makers()[name]()
    if (name, segment, levels) in REFUSED or name in WITHOUT_CHECKPOINTS:
        with pytest.raises(UnsupportedOp, match="cannot be computed again"):
            gradient(example, "checkpointed", segment, levels)
        return
    taped, checkpointed = (
        gradient(example, "taped").proto(),
        gradient(example, "checkpointed", segment, levels).proto(),
    )
    check_emitted(checkpointed)
    feeds = {**example.feeds, **seeds(example)}
    expected, found = run_ort(taped, feeds), run_ort(checkpointed, feeds)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        if "random" not in name and not isinstance(value, list):
            np.testing.assert_allclose(found[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("settings", [{"segment": -1}, {"segment": 4, "levels": 1}, {"segment": 0, "levels": 3}])
def test_refuses_settings_that_mean_nothing(settings: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="Use segment >= 1 and levels >= 2"):
        Checkpointed(**settings)
